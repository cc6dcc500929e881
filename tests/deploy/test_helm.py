"""The chart under real helm, old and new: it lints, renders what the golden manifests say, and refuses wrong values.

Skipped where helm is not installed; `make helm-test` installs it and lets nothing be skipped.
"""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.deploy.chart import (
    CASES,
    CHART,
    HELM_VERSIONS,
    NAMESPACE,
    RELEASE,
    SETTINGS,
    Manifest,
    golden_file,
    manifests,
    of_kind,
    only,
    run_helm,
    server_container,
    settings_text,
    template,
    tool,
    values_file,
    workload,
)
from tests.deploy.test_custom_kinds import SCHEMAS

KUBERNETES_VERSIONS = ("1.29", "1.33", "1.36")
CUSTOM = {name.split()[1] for name in SCHEMAS}  # kinds that Kubernetes itself does not know


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


def test_selectors_stay_when_labels_and_the_chart_change(helm: str, tmp_path: Path) -> None:
    before = workload(manifests(template(helm)))["spec"]["selector"]
    labels = {"commonLabels": {"team": "a"}, "podLabels": {"app.kubernetes.io/name": "other"}, "image": {"tag": "2"}}
    after = workload(manifests(template(helm, values=labels)))["spec"]["selector"]
    assert before == after


def test_a_new_setting_rolls_the_pods_and_a_new_replica_count_does_not(helm: str) -> None:
    def pod(values: Manifest) -> Manifest:
        made: Manifest = workload(manifests(template(helm, values=values)))["spec"]["template"]
        return made

    assert pod({}) != pod({"engine": {"maxNumSeqs": 8}})
    assert pod({}) == pod({"replicaCount": 3})


def test_old_clusters_sleep_by_a_command(helm: str) -> None:
    pre_stop = server_container(manifests(template(helm, "--kube-version", "1.29.0")))["lifecycle"]["preStop"]
    assert pre_stop == {"exec": {"command": ["python", "-c", "import time; time.sleep(10)"]}}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "LeaderWorkerSet"])
@pytest.mark.parametrize("release", ["on", "123", "a.b", "a-release-name-as-long-as-helm-lets-it-be-53-letterss"])
def test_any_release_name_makes_names_that_services_may_have(helm: str, release: str, kind: str) -> None:
    toggles = ("--set", f"kind={kind}", "--set", "cache.persistence.enabled=true,dashboard.enabled=true")
    most = 52  # of the pods' controller-revision-hash
    if kind == "LeaderWorkerSet":
        toggles = ("--set", "mode=leaderworkerset,pipeline.size=2,pipeline.existingSecret=key")
        most = 45
    ran = run_helm(helm, "template", release, str(CHART), *toggles)
    assert ran.returncode == 0, ran.stderr
    for document in manifests(ran.stdout):
        name = document["metadata"]["name"]
        assert isinstance(name, str)
        assert len(name) <= (most if document["kind"] in ("StatefulSet", "LeaderWorkerSet") else 63)
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
    def devices(**values: object) -> int:
        accelerator = {"type": "neuron", "resourceName": "aws.amazon.com/neuron", "count": values.pop("count", None)}
        resources = server_container(manifests(template(helm, values={"accelerator": accelerator, **values})))[
            "resources"
        ]
        assert resources["requests"]["aws.amazon.com/neuron"] == resources["limits"]["aws.amazon.com/neuron"]
        return int(resources["limits"]["aws.amazon.com/neuron"])

    assert devices() == 1  # both cores of the device, for one
    assert devices(device="inf2.48xlarge", tensorParallelSize=8, dataParallelSize=3) == 12
    assert devices(device="inf2.48xlarge", count=12) == 12


def test_a_null_takes_a_default_away(helm: str) -> None:
    spec = workload(manifests(template(helm, values={"podSecurityContext": {"runAsUser": None}})))["spec"]["template"]
    assert "runAsUser" not in spec["spec"]["securityContext"]


def test_the_notes_say_how_to_ask_and_what_to_mind() -> None:
    helm = tool(f"helm-{HELM_VERSIONS[-1]}")  # older ones ask a cluster for its version before they print notes
    values = yaml.safe_dump(
        {"accelerator": {"type": "neuron"}, "autoscaling": {"enabled": True}, "engine": {"pace": "device"}}
    )
    ran = run_helm(helm, "install", RELEASE, str(CHART), "-n", NAMESPACE, "--dry-run=client", "-f", "-", stdin=values)
    assert ran.returncode == 0, ran.stderr
    notes = ran.stdout.partition("NOTES:")[2]
    for words in (
        "port-forward svc/rel-neuronserve",
        "asks for no key",
        "emulated on the CPU",
        "custom metrics API",
        "on the modelled",
    ):
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
    assert sorted(document["kind"] for document in rendered) == ["Deployment", "Service", "Service"]
    assert not of_kind(rendered, "Secret")


def test_the_defaults_need_nothing_that_a_plain_cluster_does_not_have(helm: str) -> None:
    rendered = manifests(template(helm))
    kinds = ["Deployment", "Pod", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"]
    assert sorted(document["kind"] for document in rendered) == kinds
    assert not {document["kind"] for document in rendered} & CUSTOM


def test_the_version_of_a_label_is_text_that_labels_may_be(helm: str) -> None:
    tag = "_" + "x" * 61 + ".-long"
    labels = workload(manifests(template(helm, values={"image": {"tag": tag}})))["metadata"]["labels"]
    assert labels["app.kubernetes.io/version"] == "x" * 61


def test_labels_and_annotations_of_the_chart_win_over_equal_ones(helm: str) -> None:
    values = {
        "podAnnotations": {SETTINGS: "mine"},
        "serviceMonitor": {"enabled": True, "labels": {"app.kubernetes.io/name": "mine", "release": "prometheus"}},
    }
    rendered = manifests(template(helm, values=values))
    assert settings_text(rendered) != "mine"
    (monitor,) = of_kind(rendered, "ServiceMonitor")
    assert (
        monitor["metadata"]["labels"].items()
        >= {"app.kubernetes.io/name": "neuronserve", "release": "prometheus"}.items()
    )


def test_a_release_of_another_name_is_scraped(helm: str) -> None:
    rendered = manifests(template(helm, values={"serviceMonitor": {"enabled": True}, "nameOverride": "mine"}))
    wanted = only(rendered, "ServiceMonitor")["spec"]["selector"]["matchLabels"].items()
    assert [each for each in of_kind(rendered, "Service") if wanted <= each["metadata"]["labels"].items()]


def test_a_scaler_asks_for_the_mean_of_several_engines(helm: str) -> None:
    values = {"autoscaling": {"enabled": True, "type": "keda"}, "dataParallelSize": 2}
    (scaler,) = of_kind(manifests(template(helm, values=values)), "ScaledObject")
    queries = [trigger["metadata"]["query"] for trigger in scaler["spec"]["triggers"]]
    assert [query.partition("{")[0] for query in queries] == [
        "sum(vllm:num_requests_waiting",
        "sum(vllm:kv_cache_usage_perc",
    ]
    assert [query.partition("})")[2] for query in queries] == ["", " / 2"]


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
