"""Objects of other projects' APIs, by the definitions of the releases that tools/custom_schemas.py names."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.chart import CASES, Manifest, golden, of_kind, only, pods, server_container
from tools import custom_schemas

SCHEMAS = json.loads(gzip.decompress(custom_schemas.FILE.read_bytes()))
BUILT_IN = {"", "apps", "autoscaling", "networking.k8s.io", "policy", "rbac.authorization.k8s.io"}


def custom(case: str) -> Iterator[tuple[str, Manifest]]:
    for each in golden(case):
        if each["apiVersion"].rpartition("/")[0] not in BUILT_IN:
            yield f"{each['apiVersion']} {each['kind']}", each


@pytest.mark.parametrize("case", CASES)
def test_objects_of_other_apis_are_what_their_definitions_allow(case: str) -> None:
    for kind, each in custom(case):
        jsonschema.Draft7Validator(SCHEMAS[kind]).validate(each)


def test_every_definition_is_of_an_object_that_some_case_has() -> None:
    used = {kind for case in CASES for kind, _ in custom(case)}
    assert used == set(SCHEMAS)


@pytest.mark.parametrize(
    ("case", "kind", "path", "value"),
    [
        (
            "rayservice",
            "RayService",
            "spec.rayClusterConfig.headGroupSpec.template.spec.containers.0.imagePullPolcy",
            "x",
        ),
        ("rayservice", "RayService", "spec.rayClusterConfig.workerGroupSpecs.0.minReplicas", "two"),
        ("rayservice", "RayService", "spec.rayClusterConfig.authOptions.mode", "tokens"),
        ("leaderworkerset", "LeaderWorkerSet", "spec.leaderWorkerTemplate.restartPolicy", "Never"),
        ("keda", "InferencePool", "spec.endpointPickerRef.failureMode", "FailSafe"),
        ("keda", "HTTPRoute", "spec.rules.0.timeouts.request", "1 minute"),
        ("keda", "ScaledObject", "spec.scaleTargetRef.nmae", "x"),
        ("keda", "ServiceMonitor", "spec.endpoints.0.interval", "often"),
    ],
)
def test_a_wrong_object_is_refused(case: str, kind: str, path: str, value: Any) -> None:
    document = next(json.loads(json.dumps(each)) for name, each in custom(case) if name.endswith(f" {kind}"))
    *parents, last = path.split(".")
    node = document
    for part in parents:
        node = node[int(part) if part.isdigit() else part]
    node[last] = value
    with pytest.raises(jsonschema.ValidationError, match=last if value == "x" else str(value)):
        jsonschema.validate(document, SCHEMAS[f"{document['apiVersion']} {kind}"])


def test_stages_are_asked_by_the_names_that_their_pods_have() -> None:
    """A worker is `LEADER-INDEX`, below the Service of its group, which has the leader's name (LeaderWorkerSet 0.9)."""
    documents = golden("leaderworkerset")
    spec = only(documents, "LeaderWorkerSet")["spec"]
    assert spec["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}
    size = spec["leaderWorkerTemplate"]["size"]
    leader, stage = (each["spec"]["containers"][0] for each in pods(documents)[:2])
    port = stage["ports"][0]["containerPort"]
    addresses = [f"$(POD_NAME)-{index}.$(POD_NAME).ns.svc:{port}" for index in range(1, size)]
    assert [each.partition("=")[2] for each in leader["args"] if each.startswith("--pipeline-stages=")] == addresses
    (waiting,) = pods(documents)[0]["spec"]["initContainers"]
    assert waiting["args"] == addresses
    for container in (leader, waiting):
        assert {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in container["env"]
    assert f"--listen=0.0.0.0:{port}" in stage["args"]
    keys = [each["mountPath"] for pod in (leader, stage) for each in pod["volumeMounts"] if each["name"] == "pipeline"]
    assert keys == ["/etc/neuronserve-pipeline"] * 2


def test_a_stage_outlives_the_server_that_drains() -> None:
    documents = golden("leaderworkerset")
    leader, stage = (each["spec"] for each in pods(documents)[:2])
    sleeps = [each["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] for each in (leader, stage)]
    assert sleeps[0] + 60 < sleeps[1] < stage["terminationGracePeriodSeconds"]  # server.shutdownTimeoutSeconds


def test_routers_and_pickers_look_the_servers_up_by_their_headless_service() -> None:
    for case, command in (("router", "route"), ("keda", "pick")):
        documents = golden(case)
        (headless,) = (each for each in of_kind(documents, "Service") if each["spec"].get("clusterIP") == "None")
        (port,) = (each["port"] for each in headless["spec"]["ports"])
        assert port == server_container(documents)["ports"][0]["containerPort"]
        commands = [pod["spec"]["containers"][0].get("args", [None])[:2] for pod in pods(documents)]
        assert [command, f"dns:{headless['metadata']['name']}.ns.svc:{port}"] in commands


def test_a_pool_names_the_picker_of_the_release() -> None:
    documents = golden("keda")
    reference = only(documents, "InferencePool")["spec"]["endpointPickerRef"]
    (service,) = (each for each in of_kind(documents, "Service") if each["metadata"]["name"] == reference["name"])
    assert reference["port"]["number"] in {port["port"] for port in service["spec"]["ports"]}


def test_ray_serves_with_the_charts_settings() -> None:
    spec = only(golden("rayservice"), "RayService")["spec"]
    config = yaml.safe_load(spec["serveConfigV2"])
    (application,) = config["applications"]
    assert application["import_path"] == "neuronserve.server.ray.app:build"
    containers = [pod["spec"]["containers"][0] for pod in pods(golden("rayservice"))[:2]]
    ports = [{each["name"]: each["containerPort"] for each in container["ports"]} for container in containers]
    assert [each["serve"] for each in ports] == [config["http_options"]["port"]] * 2
    assert ports[1].items() >= {"gcs-server": 6379, "dashboard": 8265}.items()  # the operator asks for them by name
    assert {"command", "args"}.isdisjoint({*containers[0], *containers[1]})  # which are the operator's
    cluster = spec["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    (workers,) = cluster["workerGroupSpecs"]
    assert (workers["minReplicas"], workers["maxReplicas"]) == (3, 3)
    assert application["args"]["num_replicas"] == workers["replicas"] == 3
    assert application["args"]["distributed"] == "ray"
    for container in containers:  # the image's are those of a server alone
        given = {each["name"]: each for each in container["env"]}
        assert given["NEURONSERVE_PORT"]["value"] == "0"
        assert given["NEURONSERVE_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert containers[1]["startupProbe"]["exec"]["command"][3] == "3"


def test_definitions_are_closed_and_keep_their_limits(tmp_path: Path) -> None:
    """Of a definition in the form that projects publish them in."""
    spec = {
        "type": "object",
        "description": "prose",
        "required": ["size"],
        "properties": {
            "size": {"x-kubernetes-int-or-string": True},
            "free": {"type": "object", custom_schemas.ANYTHING: True, "properties": {"a": {"type": "string"}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}},
        },
    }
    root = {"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}
    version = {"name": "v1", "storage": True, "schema": {"openAPIV3Schema": root}}
    definition = {"spec": {"group": "g", "names": {"kind": "K"}, "versions": [version]}}
    (tmp_path / "g_ks.yaml").write_text(yaml.safe_dump(definition))
    made = custom_schemas.schemas(custom_schemas.read("a/b/g_ks.yaml", tmp_path))["g/v1 K"]
    sound = {"spec": {"size": "50%", "free": {"b": 1}, "labels": {"x": "abc"}}}
    jsonschema.validate(sound, made)
    for wrong in ({"sizes": 1}, {"size": 1.5}, {"size": 1, "labels": {"x": "long"}}, {}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"spec": wrong}, made)
