"""Deployment files without Helm: the systemd unit, the ECS task definition, the Grafana dashboard."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from neuronserve.server.api.endpoints.status import router
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.deploy.chart import ROOT, golden, of_kind, tool
from tests.deploy.test_manifests import FLUSH_AND_STOP_S

UNIT = ROOT / "deploy" / "systemd" / "neuronserve.service"
TASK = ROOT / "deploy" / "ecs" / "task-definition.json"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
DEFINITION = json.loads(TASK.read_text())
SERVER = DEFINITION["containerDefinitions"][0]
TARGETS = ("sysinit", "basic", "shutdown", "network", "network-online")


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root of a file system with the unit installed, its program, and the targets that every host has."""
    units, program = tmp_path / "etc/systemd/system", tmp_path / unit()["ExecStart"].split()[0].lstrip("/")
    for folder in (units, program.parent):
        folder.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (units / UNIT.name).write_text(UNIT.read_text())
    for target in TARGETS:
        (units / f"{target}.target").write_text("[Unit]\nDescription=a target\n")
    return tmp_path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")  # of the machine: no package for Python has it
    if program is None:
        pytest.skip("no systemd-analyze here")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_understands_every_line_of_the_unit(root: Path) -> None:
    ran = analyze("verify", "--man=no", f"--root={root}", UNIT.name)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def test_the_unit_gives_the_server_little_to_reach(root: Path) -> None:
    """systemd rates the unit at most 2.0 of 10; 10 is a service without restrictions."""
    ran = analyze("security", "--offline=true", f"--root={root}", "--threshold=20", UNIT.name)
    assert ran.returncode == 0, ran.stdout


def test_the_unit_waits_for_running_requests() -> None:
    settings = ServeSettings.model_fields["shutdown_timeout"].default
    assert int(unit()["TimeoutStopSec"]) > settings + FLUSH_AND_STOP_S
    assert unit()["KillMode"] == "mixed"  # SIGTERM to the server alone: its engines finish what runs


def test_aws_takes_the_task_definition() -> None:
    """Fields, types and enumerations of the service's own model, asked offline."""
    command = [tool("aws"), "ecs", "register-task-definition", "--region", "us-east-1"]
    check = ("--cli-input-json", TASK.as_uri(), "--generate-cli-skeleton", "output")
    ran = subprocess.run([*command, *check], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_server_takes_the_tasks_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in SERVER["environment"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    command, *arguments = SERVER["command"]
    settings = load_settings(ServeSettings, arguments)
    assert command == "serve"
    assert settings.port == SERVER["portMappings"][0]["containerPort"]
    assert settings.host == "0.0.0.0"
    assert settings.disable_access_log
    assert settings.shutdown_timeout + FLUSH_AND_STOP_S < SERVER["stopTimeout"] <= 120  # Fargate's limit
    assert {each["name"] for each in SERVER["secrets"]} == {"NEURONSERVE_API_KEY"}


def test_the_task_runs_as_the_image_and_the_chart_do() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"USER {SERVER['user']}" in dockerfile
    assert SERVER["readonlyRootFilesystem"] is True
    assert SERVER["linuxParameters"]["capabilities"] == {"drop": ["ALL"]}
    volumes = {each["name"] for each in DEFINITION["volumes"]}
    assert {each["sourceVolume"] for each in SERVER["mountPoints"]} == volumes
    paths = [each["containerPath"] for each in SERVER["mountPoints"]]
    assert f"VOLUME {json.dumps(paths)}" in dockerfile  # a volume has the owner of the image's folder then
    (path,) = re.findall(r"http://127\.0\.0\.1:8000(/[\w/]+)", " ".join(SERVER["healthCheck"]["command"]))
    assert path in {route.path for route in router.routes}  # type: ignore[attr-defined]


def test_the_dashboard_is_the_charts_and_needs_no_helm() -> None:
    """The chart's `all` case renders the same, but for the price that it sets."""
    (config,) = (each for each in of_kind(golden("all"), "ConfigMap") if each["metadata"]["name"] == "on-dashboard")
    rendered, ours = json.loads(*config["data"].values()), json.loads(DASHBOARD.read_text())
    assert [panel["title"] for panel in ours["panels"]] == [panel["title"] for panel in rendered["panels"]]
    assert ours["panels"] == rendered["panels"]
    variables = {each["name"]: each for each in ours["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"  # Grafana asks for it, so no id of one is inside
    others = [each for each in rendered["templating"]["list"] if each["name"] != "price"]
    assert [each for each in ours["templating"]["list"] if each["name"] != "price"] == others
    assert variables["price"]["query"] == "0"
    assert not re.search(r"__(TTFT_SLO|TPOT_SLO|PRICE)__", DASHBOARD.read_text())
    assert "id" not in ours  # of one Grafana's database
