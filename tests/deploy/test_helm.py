"""The chart under real helm, old and new: it lints, renders what the golden manifests say, and refuses wrong values.

Skipped where helm is not installed; `make helm-test` installs it and lets nothing be skipped.
"""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import (
    CASES,
    CHART,
    HELM_VERSIONS,
    NAMESPACE,
    RELEASE,
    Manifest,
    golden_file,
    manifests,
    of_kind,
    refusal,
    run_helm,
    server_container,
    template,
    tool,
    values_file,
    workload,
)

KUBERNETES_VERSIONS = ("1.29", "1.32", "1.35")
CUSTOM = {"HTTPRoute", "InferencePool", "PrometheusRule", "ServiceMonitor", "ScaledObject"}  # kinds with no schema here


@pytest.fixture(params=HELM_VERSIONS)
def helm(request: pytest.FixtureRequest) -> str:
    found = tool(f"helm-{request.param}")
    assert request.param in run_helm(found, "version").stdout
    return found


def nested(key: str, value: Any) -> Manifest:
    """`a.b` and a value to {"a": {"b": value}}."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES)
def test_the_chart_lints_with_every_set_of_values(helm: str, case: str) -> None:
    ran = run_helm(helm, "lint", "--strict", str(CHART), "--values", str(values_file(case)))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "[WARNING]" not in ran.stdout


@pytest.mark.parametrize("case", CASES)
def test_the_golden_manifests_are_what_helm_renders(helm: str, case: str) -> None:
    rendered = template(helm, values=yaml.safe_load(values_file(case).read_text()))
    assert manifests(rendered) == manifests(golden_file(case).read_text()), "run `python -m tests.deploy.chart`"


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_kubernetes_knows_every_field(case: str, version: str, tmp_path: Path) -> None:
    helm = tool(f"helm-{HELM_VERSIONS[0]}")
    text = template(helm, "--kube-version", f"{version}.0", values=yaml.safe_load(values_file(case).read_text()))
    known = [document for document in manifests(text) if document["kind"] not in CUSTOM]
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(known))
    command = [tool("kubernetes-validate"), "-k", version, "--strict", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (ran.stdout + ran.stderr).count(" passed ") == len(known)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("replicaCuont", 2),
        ("model.nmae", "x"),
        ("resources.limit", {"cpu": 1}),
        ("autoscaling.keda.serverAdress", "http://x"),
        ("replicaCount", -1),
        ("replicaCount", "two"),
        ("replicaCount", 1.5),
        ("device", "inf3.xlarge"),
        ("tensorParallelSize", 0),
        ("tensorParallelSize", 3),
        ("tensorParallelSize", 4),  # more than the inf2.xlarge has
        ("price.hourlyUsd", "cheap"),
        ("price.hourlyUsd", -0.5),
        ("slo.ttftSeconds", 3),  # no bound of the histogram's
        ("slo.objective", 95),
        ("engine.blockSize", 24),
        ("engine.deviceMemoryUtilization", 1.5),
        ("server.port", 80),  # the server has no right to ports below 1024
        ("server.port", 70000),
        ("model.maxModelLen", 1),
        ("model.dtype", "float16"),
        ("model.quantization", "int4"),
        ("tracing.otlpEndpoint", "collector:4317"),
        ("model.servedNames", ["one, two"]),
        ("kind", "DaemonSet"),
        ("auth.apiKeys", ["with,comma"]),
        ("auth.apiKeys", [""]),
        ("image.tag", "bad tag"),
        ("image.digest", "sha256:short"),
        ("preStopSleepSeconds", 0),
        ("cache.persistence.accessModes", ["ReadOnlyMany"]),
        ("accelerator.type", "gpu"),
        ("accelerator.count", 0),
        ("fullnameOverride", "1st"),
        ("commonLabels", {"a": True}),
        ("autoscaling.minReplicas", 0),
        ("pdb.maxUnavailable", "half"),
    ],
)
def test_the_schema_refuses_wrong_values_and_names_the_key(helm: str, key: str, value: Any) -> None:
    said = refusal(helm, nested(key, value))
    assert key.rpartition(".")[2] in said
    assert "meet the specifications of the schema" in said or "schema" in said


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"engine": {"maxNumBatchedTokens": 32}}, "engine.maxNumBatchedTokens is 32: it must be at least"),
        ({"terminationGracePeriodSeconds": 70}, "terminationGracePeriodSeconds is 70: it must be above"),
        ({"model": {"existingClaim": "c", "name": "org/model"}}, 'model.name is "org/model"'),
        ({"auth": {"apiKeys": ["a"], "existingSecret": "s"}}, "auth.apiKeys"),
        ({"autoscaling": {"enabled": True, "minReplicas": 5}}, "autoscaling.minReplicas is 5"),
        ({"httpRoute": {"enabled": True, "useInferencePool": True}}, "httpRoute.useInferencePool"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs"),
        ({"ingress": {"enabled": True}}, "ingress.hosts"),
        ({"inferencePool": {"enabled": True}}, "inferencePool.endpointPicker.name"),
        ({"cache": {"persistence": {"enabled": True}}, "replicaCount": 2}, "cache.persistence.accessModes"),
        (
            {"kind": "StatefulSet", "cache": {"persistence": {"enabled": True, "existingClaim": "c"}}},
            "cache.persistence.existingClaim",
        ),
        ({"extraArgs": ["--port=1"]}, "extraArgs: --port is set by server.port"),
        ({"extraArgs": ["--tensor-parallel-size", "2"]}, "--tensor-parallel-size is set by tensorParallelSize"),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_the_key(helm: str, values: Manifest, key: str) -> None:
    assert key in refusal(helm, values)


def test_selectors_stay_when_labels_and_the_chart_change(helm: str, tmp_path: Path) -> None:
    before = workload(manifests(template(helm)))["spec"]["selector"]
    labels = {"commonLabels": {"team": "a"}, "podLabels": {"app.kubernetes.io/name": "other"}, "image": {"tag": "2"}}
    after = workload(manifests(template(helm, values=labels)))["spec"]["selector"]
    assert before == after


def test_a_new_setting_rolls_the_pods_and_a_new_replica_count_does_not(helm: str) -> None:
    def checksum(values: Manifest) -> str:
        template_metadata = workload(manifests(template(helm, values=values)))["spec"]["template"]["metadata"]
        return str(template_metadata["annotations"]["checksum/config"])

    assert checksum({}) != checksum({"engine": {"maxNumSeqs": 8}})
    assert checksum({}) == checksum({"replicaCount": 3})


def test_old_clusters_sleep_by_a_command(helm: str) -> None:
    pre_stop = server_container(manifests(template(helm, "--kube-version", "1.29.0")))["lifecycle"]["preStop"]
    assert pre_stop == {"exec": {"command": ["python", "-c", "import time; time.sleep(10)"]}}


@pytest.mark.parametrize("release", ["on", "123", "a.b", "a-release-name-as-long-as-helm-lets-it-be-53-charac"])
def test_any_release_name_makes_names_that_services_may_have(helm: str, release: str) -> None:
    ran = run_helm(helm, "template", release, str(CHART), "--set", "cache.persistence.enabled=true")
    assert ran.returncode == 0, ran.stderr
    for document in manifests(ran.stdout):
        name = document["metadata"]["name"]
        assert isinstance(name, str)
        assert len(name) <= 63
        assert name[0].isalpha()
        assert "." not in name
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == release


@pytest.mark.parametrize(
    ("values", "surge"),
    [
        ({}, {"maxSurge": 1, "maxUnavailable": 0}),
        ({"accelerator": {"type": "neuron"}}, {"maxSurge": 0, "maxUnavailable": 1}),  # no spare devices
        ({"cache": {"persistence": {"enabled": True}}}, {"maxSurge": 0, "maxUnavailable": 1}),  # one node's volume
    ],
)
def test_an_update_adds_a_pod_first_where_it_can(helm: str, values: Manifest, surge: Manifest) -> None:
    assert workload(manifests(template(helm, values=values)))["spec"]["strategy"]["rollingUpdate"] == surge


def test_whole_devices_can_be_asked_for(helm: str) -> None:
    values = {"accelerator": {"type": "neuron", "resourceName": "aws.amazon.com/neuron", "count": 6}}
    resources = server_container(manifests(template(helm, values=values)))["resources"]
    assert resources["requests"]["aws.amazon.com/neuron"] == resources["limits"]["aws.amazon.com/neuron"] == 6


def test_a_null_takes_a_default_away(helm: str) -> None:
    spec = workload(manifests(template(helm, values={"podSecurityContext": {"runAsUser": None}})))["spec"]["template"]
    assert "runAsUser" not in spec["spec"]["securityContext"]


def test_the_notes_say_how_to_ask_and_what_to_mind() -> None:
    helm = tool(f"helm-{HELM_VERSIONS[-1]}")  # older ones ask a cluster for its version before they print notes
    values = yaml.safe_dump({"accelerator": {"type": "neuron"}, "autoscaling": {"enabled": True}})
    ran = run_helm(helm, "install", RELEASE, str(CHART), "-n", NAMESPACE, "--dry-run=client", "-f", "-", stdin=values)
    assert ran.returncode == 0, ran.stderr
    notes = ran.stdout.partition("NOTES:")[2]
    for words in ("port-forward svc/rel-neuronserve", "asks for no key", "emulated on the CPU", "custom metrics API"):
        assert words in notes


def test_a_package_has_no_test_values(helm: str, tmp_path: Path) -> None:
    ran = run_helm(helm, "package", str(CHART), "--destination", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    with tarfile.open(next(tmp_path.glob("*.tgz"))) as package:
        names = package.getnames()
    assert "neuronserve/files/dashboard.json" in names
    assert "neuronserve/values.schema.json" in names
    assert not any(part in name for name in names for part in ("/ci/", "/golden/"))


def test_without_anything_optional_only_what_serves_is_left(helm: str) -> None:
    rendered = manifests(template(helm, values=yaml.safe_load(values_file("minimal").read_text())))
    assert sorted(document["kind"] for document in rendered) == ["ConfigMap", "Deployment", "Service", "Service"]
    assert not of_kind(rendered, "Secret")


def test_yaml_files_are_tidy() -> None:
    rules = "{extends: default, rules: {line-length: {max: 160}, document-start: disable, braces: disable}}"
    files = [CHART / "Chart.yaml", CHART / "values.yaml"]
    command = [tool("yamllint"), "--strict", "-d", rules, *map(str, files)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout


def test_the_dockerfile_is_tidy() -> None:
    ran = subprocess.run(
        [tool("hadolint"), str(CHART.parent / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout
