"""Rules that a real API server, or a cluster's peace, asks for beyond schemas; held against the golden manifests."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.deploy.chart import (
    ON_SERVERS,
    SETTINGS,
    Manifest,
    component,
    golden,
    of_kind,
    pods,
    server_container,
    settings_text,
    values,
    workload,
)

pytestmark = pytest.mark.parametrize("case", ON_SERVERS)

SERVER_LABELS = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
NO_SPARE = {"maxSurge": 0, "maxUnavailable": 1, "partition": 0}
FLUSH_AND_STOP_S = 10  # server/api/server.py: FLUSH_TIMEOUT_S + ENGINE_STOP_TIMEOUT_S


def settings_of(documents: tuple[Manifest, ...], directory: Path) -> ServeSettings:
    """The settings the server makes of the container's arguments and of the file they name."""
    file = directory / "config.yaml"
    file.write_text(settings_text(documents))
    command, *arguments = server_container(documents)["args"]
    assert command == "serve"
    arguments = [argument.replace("/etc/neuronserve/config.yaml", str(file)) for argument in arguments]
    return load_settings(ServeSettings, arguments)


def test_selectors_hold_nothing_that_can_change(case: str) -> None:
    for each in of_kind(golden(case), "Deployment", "StatefulSet"):
        wanted = each["spec"]["selector"]["matchLabels"]
        assert set(wanted) == SERVER_LABELS
        assert wanted["app.kubernetes.io/component"] == component(each)
        assert wanted.items() <= each["spec"]["template"]["metadata"]["labels"].items()


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


def test_the_grace_period_covers_what_the_server_may_take(case: str, tmp_path: Path) -> None:
    documents = golden(case)
    grace = pods(documents)[0]["spec"]["terminationGracePeriodSeconds"]
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
    template = pods(documents)[0]
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
    elif target["kind"] == "LeaderWorkerSet":
        assert target["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"] == NO_SPARE
    elif "strategy" not in values(case):
        assert target["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
