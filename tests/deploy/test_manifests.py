"""Rules that a real API server, or a cluster's peace, asks for beyond schemas; held against the golden manifests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.deploy.chart import (
    CASES,
    SETTINGS,
    Manifest,
    golden,
    of_kind,
    only,
    pod_specs,
    server_container,
    settings_text,
    values_file,
    workload,
)

pytestmark = pytest.mark.parametrize("case", CASES)

SERVER_LABELS = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
FLUSH_AND_STOP_S = 10  # server/api/server.py: FLUSH_TIMEOUT_S + ENGINE_STOP_TIMEOUT_S


def values(case: str) -> Manifest:
    loaded: Manifest = yaml.safe_load(values_file(case).read_text())
    return loaded


def walk(node: Any) -> Iterator[tuple[str, Any]]:
    """Every (key, value) of a document."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield str(key), value
        yield from walk(value)


def settings_of(documents: tuple[Manifest, ...], directory: Path) -> ServeSettings:
    """The settings the server makes of the container's arguments and of the file they name."""
    file = directory / "config.yaml"
    file.write_text(settings_text(documents))
    command, *arguments = server_container(documents)["args"]
    assert command == "serve"
    arguments = [argument.replace("/etc/neuronserve/config.yaml", str(file)) for argument in arguments]
    return load_settings(ServeSettings, arguments)


def test_no_two_objects_are_the_same(case: str) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in golden(case)]
    assert len(names) == len(set(names))


def test_names_are_within_the_limits_of_dns(case: str) -> None:
    for each in golden(case):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", each["metadata"]["name"]), each["metadata"]["name"]


def test_labels_and_annotations_are_text(case: str) -> None:
    for each in golden(case):
        for key, value in walk(each):
            if key in {"labels", "annotations", "matchLabels", "nodeSelector"}:
                assert all(isinstance(text, str) for text in value.values()), value


def test_selectors_hold_nothing_that_can_change(case: str) -> None:
    spec = workload(golden(case))["spec"]
    assert set(spec["selector"]["matchLabels"]) == SERVER_LABELS
    assert spec["selector"]["matchLabels"]["app.kubernetes.io/component"] == "server"
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_everything_that_selects_selects_the_pods_and_not_the_test(case: str) -> None:
    documents = golden(case)
    labels = workload(documents)["spec"]["template"]["metadata"]["labels"]
    selectors = [each["spec"]["selector"] for each in of_kind(documents, "Service")]
    for kind in ("PodDisruptionBudget", "InferencePool"):
        selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(documents, kind)]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(documents, "NetworkPolicy")]
    assert len(selectors) >= 2
    for selector in selectors:
        assert selector.items() <= labels.items()
        for test in of_kind(documents, "Pod"):
            assert not selector.items() <= test["metadata"]["labels"].items()


def test_monitoring_scrapes_each_pod_once(case: str) -> None:
    documents = golden(case)
    for monitor in of_kind(documents, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = (s for s in of_kind(documents, "Service") if wanted <= s["metadata"]["labels"].items())
        assert service["metadata"]["name"] == workload(documents)["metadata"]["name"]  # the `job` of every query
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_named_ports_exist_in_the_pod(case: str) -> None:
    documents = golden(case)
    container = server_container(documents)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    named = [container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    named += [port["targetPort"] for each in of_kind(documents, "Service") for port in each["spec"]["ports"]]
    for policy in of_kind(documents, "NetworkPolicy"):
        named += [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert set(named) == {"http", "health"} == set(ports)
    for pool in of_kind(documents, "InferencePool"):
        assert [port["number"] for port in pool["spec"]["targetPorts"]] == [ports["http"]]


def test_routes_lead_to_a_service_or_pool_of_the_release(case: str) -> None:
    documents = golden(case)
    names = {(each["kind"], each["metadata"]["name"]) for each in documents}
    for route in of_kind(documents, "HTTPRoute"):
        (backend,) = route["spec"]["rules"][0]["backendRefs"]
        assert (backend.get("kind", "Service"), backend["name"]) in names
    for ingress in of_kind(documents, "Ingress"):
        for rule in ingress["spec"]["rules"]:
            assert ("Service", rule["http"]["paths"][0]["backend"]["service"]["name"]) in names


def test_an_autoscaler_owns_the_number_of_replicas(case: str) -> None:
    documents = golden(case)
    target = workload(documents)
    scalers = of_kind(documents, "HorizontalPodAutoscaler", "ScaledObject")
    assert target["spec"].get("replicas") == (None if scalers else values(case).get("replicaCount"))
    is_unset = target["metadata"].get("annotations", {}).get("neuronserve/replicas") == "unset"
    assert is_unset == ("replicas" not in target["spec"])
    for scaler in scalers:
        ref = scaler["spec"]["scaleTargetRef"]
        assert (ref["kind"], ref["name"]) == (target["kind"], target["metadata"]["name"])


def test_only_neuron_asks_for_neuron(case: str) -> None:
    spec = workload(golden(case))["spec"]["template"]["spec"]
    resources = server_container(golden(case))["resources"]
    extended = [{k: v for k, v in resources.get(part, {}).items() if "/" in k} for part in ("requests", "limits")]
    assert extended[0] == extended[1]
    if values(case).get("accelerator", {}).get("type") == "neuron":
        assert extended[0] == {"aws.amazon.com/neuroncore": values(case)["tensorParallelSize"]}
        assert all(type(count) is int for count in extended[0].values())
        assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": values(case)["device"]}
        assert {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    else:
        assert extended[0] == {}
        assert "aws.amazon.com" not in json.dumps(spec)


def test_the_grace_period_covers_what_the_server_may_take(case: str, tmp_path: Path) -> None:
    documents = golden(case)
    grace = workload(documents)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    sleep = server_container(documents)["lifecycle"]["preStop"]["sleep"]["seconds"]
    settings = settings_of(documents, tmp_path)
    assert 0 < sleep < grace
    assert grace >= sleep + settings.shutdown_timeout + FLUSH_AND_STOP_S


def test_probes_ask_what_the_server_answers(case: str) -> None:
    container = server_container(golden(case))
    assert container["startupProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": "health"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_pods_obey_the_restricted_security_standard(case: str) -> None:
    own = {"server", "chat"}  # other containers are the user's
    for spec in pod_specs(golden(case)):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        containers = [each for each in spec["containers"] if each["name"] in own]
        assert len(containers) == 1
        context = containers[0]["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True


def test_every_path_that_is_written_lies_on_a_volume_that_exists(case: str) -> None:
    spec = workload(golden(case))["spec"]
    container = server_container(golden(case))
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
    assert {mount["name"] for mount in mounts.values()} <= volumes
    writable = tuple(path for path, mount in mounts.items() if not mount.get("readOnly"))
    paths = [each["value"] for each in container["env"] if each.get("value", "").startswith("/")]
    assert len(paths) >= 4
    assert all(path.startswith(writable) for path in paths)
    assert "/tmp" in writable


def test_claims_exist_or_are_the_users(case: str) -> None:
    documents = golden(case)
    named = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in workload(documents)["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    made = {each["metadata"]["name"] for each in of_kind(documents, "PersistentVolumeClaim")}
    assert made <= named
    assert named - made <= {values(case).get("model", {}).get("existingClaim")}
    for claim in of_kind(documents, "PersistentVolumeClaim"):
        assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_secrets_are_read_by_reference_only(case: str) -> None:
    documents = golden(case)
    keys = values(case).get("auth", {}).get("apiKeys", [])
    others = json.dumps([each for each in documents if each["kind"] != "Secret"])
    assert not any(key in others for key in keys)
    secrets = {each["metadata"]["name"]: each["data"] for each in of_kind(documents, "Secret")}
    for spec in pod_specs(documents):
        for variable in spec["containers"][0]["env"]:
            ref = variable.get("valueFrom", {}).get("secretKeyRef")
            if ref is not None and keys:
                assert ref["key"] in secrets[ref["name"]]
    assert bool(secrets) == bool(keys)


def test_images_are_pinned(case: str) -> None:
    for spec in pod_specs(golden(case)):
        image = spec["containers"][0]["image"]
        assert isinstance(image, str)
        assert not image.endswith(":latest")
        assert re.search(r":[\w.-]+$|@sha256:", image)


def test_the_server_accepts_what_the_chart_writes(case: str, tmp_path: Path) -> None:
    given = values(case)
    settings = settings_of(golden(case), tmp_path)
    assert settings.device == given.get("device", "inf2.xlarge")
    assert settings.tensor_parallel_size == given.get("tensorParallelSize", 1)
    assert settings.quantization == given.get("model", {}).get("quantization", "auto")
    assert list(settings.modules_to_not_convert) == given.get("model", {}).get("modulesToNotConvert", [])
    assert settings.otlp_traces_endpoint == given.get("tracing", {}).get("otlpEndpoint")
    assert settings.port == server_container(golden(case))["ports"][0]["containerPort"]
    assert settings.host == "0.0.0.0"
    assert settings.model_names[0] == (given.get("model", {}).get("servedNames") or [settings.model_names[0]])[0]
    assert settings.disable_access_log != given.get("server", {}).get("accessLog", False)


def test_the_engine_takes_the_threads_the_container_has(case: str) -> None:
    container = server_container(golden(case))
    (threads,) = [e for e in container["env"] if e["name"] == "NEURONSERVE_CPU_THREADS"] or [None]
    limits, requests = (container["resources"].get(part, {}) for part in ("limits", "requests"))
    if threads is None:
        assert "cpu" not in limits
        assert "cpu" not in requests
    else:
        part = "limits" if "cpu" in limits else "requests"
        assert threads["valueFrom"]["resourceFieldRef"]["resource"] == f"{part}.cpu"


def test_pods_mount_the_settings_that_they_carry(case: str) -> None:
    """So a changed setting is a changed pod, accepted or refused as one object."""
    documents = golden(case)
    template = workload(documents)["spec"]["template"]
    (volume,) = (each for each in template["spec"]["volumes"] if each["name"] == "config")
    (item,) = volume["downwardAPI"]["items"]
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{SETTINGS}']"
    (mount,) = (each for each in server_container(documents)["volumeMounts"] if each["name"] == "config")
    assert f"--config={mount['mountPath']}/{item['path']}" in server_container(documents)["args"]
    assert ("checksum/secret" in template["metadata"]["annotations"]) == bool(of_kind(documents, "Secret"))
    assert "helm.sh/chart" not in template["metadata"]["labels"]  # a new version of the chart alone rolls no pod


def test_updates_never_take_neuron_devices_that_are_not_there(case: str) -> None:
    target = workload(golden(case))
    if target["kind"] == "StatefulSet":
        assert target["spec"]["serviceName"] in {s["metadata"]["name"] for s in of_kind(golden(case), "Service")}
        assert target["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
    elif "strategy" not in values(case):
        assert target["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_test_pod_is_a_hook_with_the_servers_image(case: str) -> None:
    documents = golden(case)
    tests = of_kind(documents, "Pod")
    assert len(tests) == (values(case).get("tests", {}).get("enabled", True))
    for test in tests:
        assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
        assert test["spec"]["restartPolicy"] == "Never"
        assert test["spec"]["containers"][0]["image"] == server_container(documents)["image"]
        compile(test["spec"]["containers"][0]["command"][2], "chat.py", "exec")
        service = only(tuple(s for s in of_kind(documents, "Service") if "clusterIP" not in s["spec"]), "Service")
        (base,) = (e["value"] for e in test["spec"]["containers"][0]["env"] if e["name"] == "BASE_URL")
        assert base.split(":", 1)[1] == f"//{service['metadata']['name']}.ns.svc:{service['spec']['ports'][0]['port']}"
