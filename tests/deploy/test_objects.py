"""Rules that a real API server, or a cluster's peace, asks of every object beyond schemas; on the golden manifests."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from neuronserve.cli.every import BY_COMMAND
from neuronserve.server.settings.sources import load_settings
from tests.deploy.chart import (
    CASES,
    component,
    front,
    golden,
    of_kind,
    pod_specs,
    pods,
    server_container,
    values,
    walk,
    workload,
)

# What the operator of Ray makes of `serveService`.
SERVED = {"kind": "Service", "metadata": {"name": "rel-neuronserve"}}

pytestmark = pytest.mark.parametrize("case", CASES)


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


def test_whatever_selects_selects_the_pods_of_its_component_and_no_others(case: str) -> None:
    documents = golden(case)
    labels = [pod["metadata"]["labels"] for pod in pods(documents)]
    selecting = {each["metadata"]["name"]: each["spec"]["selector"] for each in of_kind(documents, "Service")}
    for kind in ("PodDisruptionBudget", "InferencePool", "NetworkPolicy"):
        for each in of_kind(documents, kind):
            field = "podSelector" if kind == "NetworkPolicy" else "selector"
            selecting[f"{kind} {each['metadata']['name']}"] = each["spec"][field]["matchLabels"]
    assert len(selecting) >= 1
    for name, selector in selecting.items():
        assert {"app.kubernetes.io/component", "app.kubernetes.io/instance"} <= set(selector), name
        assert len([each for each in labels if selector.items() <= each.items()]) == 1, name
    budgets = [value for name, value in selecting.items() if name.startswith("PodDisruptionBudget")]
    covered = [each for each in labels if any(budget.items() <= each.items() for budget in budgets)]
    uncovered = {each["app.kubernetes.io/component"] for each in labels if each not in covered}
    assert uncovered <= {"test", "head"} or not budgets


def test_monitoring_scrapes_each_pod_once_under_the_job_of_the_queries(case: str) -> None:
    documents = golden(case)
    jobs = {}
    for monitor in of_kind(documents, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = (s for s in of_kind(documents, "Service") if wanted <= s["metadata"]["labels"].items())
        jobs[service["spec"]["selector"]["app.kubernetes.io/component"]] = service["metadata"]["name"]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    asked = re.findall(
        r'job="([^"]+)"', json.dumps(of_kind(documents, "ScaledObject", "PrometheusRule")).replace("\\", "")
    )
    if jobs:
        assert set(jobs) == {component(pod) for pod in pods(documents)} - {"test", "stage"}
        assert set(asked) <= {jobs["server"]}


def test_named_ports_exist_in_the_pods_that_they_are_of(case: str) -> None:
    documents = golden(case)
    ports = {
        component(pod): {each["name"] for each in pod["spec"]["containers"][0].get("ports", ())}
        for pod in pods(documents)
    }
    for pod in pods(documents):
        probes = [value for key, value in pod["spec"]["containers"][0].items() if key.endswith("Probe")]
        for probe in probes:
            (handler,) = (probe[kind] for kind in ("httpGet", "tcpSocket", "grpc", "exec") if kind in probe)
            assert "command" in handler or handler["port"] in ports[component(pod)] | {9003}
    for service in of_kind(documents, "Service"):
        named = ports[service["spec"]["selector"]["app.kubernetes.io/component"]]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named
    for policy in of_kind(documents, "NetworkPolicy"):
        named = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert named <= ports[component(policy)]
    for pool in of_kind(documents, "InferencePool"):
        assert pool["spec"]["targetPorts"] == [{"number": server_container(documents)["ports"][0]["containerPort"]}]


def test_routes_lead_to_a_service_or_pool_of_the_release(case: str) -> None:
    documents = golden(case)
    names = {(each["kind"], each["metadata"]["name"]) for each in (*documents, SERVED)}
    for route in of_kind(documents, "HTTPRoute"):
        (backend,) = route["spec"]["rules"][0]["backendRefs"]
        assert (backend.get("kind", "Service"), backend["name"]) in names
    for ingress in of_kind(documents, "Ingress"):
        for rule in ingress["spec"]["rules"]:
            assert ("Service", rule["http"]["paths"][0]["backend"]["service"]["name"]) in names


def test_only_neuron_asks_for_neuron(case: str) -> None:
    spec = pods(golden(case))[0]["spec"]
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


def test_pods_obey_the_restricted_security_standard(case: str) -> None:
    own = {"server", "chat", "failover"}  # other containers are the user's
    for pod in pods(golden(case)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        is_failover = pod["metadata"].get("name", "").endswith("-failover")  # the test that ends a server
        assert spec["automountServiceAccountToken"] is is_failover
        assert spec["enableServiceLinks"] is False
        containers = [each for each in spec["containers"] if each["name"] in own]
        assert len(containers) == 1
        context = containers[0]["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True


def test_every_path_that_is_written_lies_on_a_volume_that_exists(case: str) -> None:
    claims = {each["metadata"]["name"] for each in workload(golden(case))["spec"].get("volumeClaimTemplates", ())}
    for pod in pods(golden(case))[: -len(of_kind(golden(case), "Pod")) or None]:
        container = pod["spec"]["containers"][0]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert {mount["name"] for mount in mounts.values()} <= claims | {
            each["name"] for each in pod["spec"]["volumes"]
        }
        writable = tuple(path for path, mount in mounts.items() if not mount.get("readOnly"))
        paths = [each["value"] for each in container["env"] if each.get("value", "").startswith("/")]
        assert len(paths) >= (1 if component(pod) in {"router", "picker"} else 4)
        assert all(path.startswith(writable) for path in paths)
        assert "/tmp" in writable


def test_every_command_takes_the_arguments_of_its_pods(case: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    for pod in pods(golden(case)):
        for command, *arguments in filter(None, [pod["spec"]["containers"][0].get("args")]):
            given = [each.replace("/etc/neuronserve/", f"{tmp_path}/") for each in arguments]
            if component(pod) == "server":  # whose key of stages is in its file
                given = [each for each in given if not each.startswith("--pipeline-stages=")]
            assert load_settings(BY_COMMAND[command], given).model_fields_set - {"config"}


def test_claims_exist_or_are_the_users(case: str) -> None:
    documents = golden(case)
    named = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pods(documents)[0]["spec"]["volumes"]
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


def test_the_test_pod_is_a_hook_with_the_servers_image(case: str) -> None:
    documents = golden(case)
    tests = of_kind(documents, "Pod")
    assert len(tests) == (values(case).get("tests", {}).get("enabled", True)) + (case == "router")
    for test in tests:
        assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
        assert test["spec"]["restartPolicy"] == "Never"
        assert test["spec"]["containers"][0]["image"] == server_container(documents)["image"]
        compile(test["spec"]["containers"][0]["command"][2], "chat.py", "exec")
        service = front(documents)
        (base,) = (e["value"] for e in test["spec"]["containers"][0]["env"] if e["name"] == "BASE_URL")
        assert base.split(":", 1)[1] == f"//{service['metadata']['name']}.ns.svc:{service['spec']['ports'][0]['port']}"
