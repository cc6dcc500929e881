"""The compose file with Prometheus and Grafana, and the action for GitHub: neither is run by its own program here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.api.serving import PATIENCE_S, ROOT, environment, is_running, until

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ACTION = yaml.safe_load((DEPLOY / "action" / "action.yml").read_text())
FILES = ("prometheus", "datasource", "dashboards")  # of deploy/compose
TEXT = {"type": "string"}

# What of compose's specification, and of GitHub's syntax of action files, these files use; anything else is a slip.
OF_SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image"],
    "properties": {
        "image": TEXT,
        "build": {"type": "object", "additionalProperties": False, "properties": {"context": TEXT}},
        "command": {"type": "array", "items": TEXT},
        "ports": {"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\$\{[A-Z_]+:-\d+\}:\d+$"}},
        "environment": {"type": "object", "additionalProperties": TEXT},
        "volumes": {"type": "array", "items": {"type": "string", "pattern": r"^(\./)?[\w./]+:/[\w./]+(:ro)?$"}},
        "tmpfs": {"type": "array", "items": TEXT},
        "read_only": {"type": "boolean"},
        "cap_drop": {"type": "array", "items": TEXT},
        "security_opt": {"type": "array", "items": TEXT},
        "stop_grace_period": {"type": "string", "pattern": r"^\d+s$"},
        "depends_on": {"type": ["array", "object"]},
    },
}
OF_COMPOSE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["services"],
    "properties": {
        "name": TEXT,
        "services": {"type": "object", "additionalProperties": OF_SERVICE},
        "volumes": {"type": "object", "additionalProperties": {"type": "object", "maxProperties": 0}},
    },
}
OF_STEP = {
    "type": "object",
    "additionalProperties": False,
    "oneOf": [{"required": ["run", "shell"]}, {"required": ["uses", "with"]}],
    "properties": {
        "name": TEXT,
        "id": TEXT,
        "shell": {"enum": ["bash"]},
        "env": {"type": "object", "additionalProperties": TEXT},
        "run": TEXT,
        "uses": {"type": "string", "pattern": r"^actions/\w+@v\d+$"},
        "with": {"type": "object", "additionalProperties": TEXT},
    },
}
OF_ACTION = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "description", "runs"],
    "properties": {
        "name": TEXT,
        "description": {"type": "string", "maxLength": 125},
        "inputs": {
            "additionalProperties": {
                "additionalProperties": False,
                "required": ["description", "default"],
                "properties": {"description": TEXT, "default": TEXT},
            }
        },
        "outputs": {
            "additionalProperties": {
                "additionalProperties": False,
                "required": ["description", "value"],
                "properties": {"description": TEXT, "value": TEXT},
            }
        },
        "runs": {
            "additionalProperties": False,
            "required": ["using", "steps"],
            "properties": {"using": {"const": "composite"}, "steps": {"type": "array", "items": OF_STEP}},
        },
    },
}


def test_both_files_have_the_keys_of_their_formats() -> None:
    jsonschema.validate(COMPOSE, OF_COMPOSE)
    jsonschema.validate(ACTION, OF_ACTION)


def test_what_is_mounted_is_there() -> None:
    mounted = [volume.split(":") for service in SERVICES.values() for volume in service.get("volumes", ())]
    for source, target, *mode in mounted:
        if source.startswith("./"):
            assert (DEPLOY / source).is_file(), source
            assert mode == ["ro"]
        else:
            assert source in COMPOSE["volumes"], source
        assert target.startswith("/")
    waited_for = [name for service in SERVICES.values() for name in service.get("depends_on", ())]
    assert set(waited_for) <= set(SERVICES)


def test_the_server_takes_its_environment_and_has_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    service, dockerfile = SERVICES["neuronserve"], (ROOT / "Dockerfile").read_text()
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:-(.*)\}", r"\1", value))
    settings = load_settings(ServeSettings, ())
    assert (settings.device, settings.pace) == ("inf2.xlarge", "host")
    assert int(service["stop_grace_period"][:-1]) > settings.shutdown_timeout
    assert "HEALTHCHECK" in dockerfile  # others wait for service_healthy
    assert f"EXPOSE {service['ports'][0].rpartition(':')[2]}" in dockerfile
    written = json.loads(dockerfile.split("VOLUME ")[1].splitlines()[0])
    assert set(written) == {volume.split(":")[1] for volume in service["volumes"]} | set(service["tmpfs"])


def test_prometheus_scrapes_the_server_and_grafana_shows_the_shipped_dashboard() -> None:
    read = {name: yaml.safe_load((DEPLOY / "compose" / f"{name}.yaml").read_text()) for name in FILES}
    (job,) = read["prometheus"]["scrape_configs"]
    (targets,) = job["static_configs"]
    service, port = targets["targets"][0].split(":")
    assert (service in SERVICES, SERVICES[service]["ports"][0].endswith(f":{port}")) == (True, True)
    assert "namespace" in targets["labels"]  # which the dashboard chooses by
    (source,) = read["datasource"]["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    grafana = SERVICES["grafana"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert f"./grafana/dashboard.json:{home}:ro" in grafana["volumes"]
    assert read["dashboards"]["providers"][0]["options"]["path"] == str(home.parent)
    (config,) = (word for word in SERVICES["prometheus"]["command"] if word.startswith("--config.file="))
    assert f"./compose/prometheus.yaml:{config.partition('=')[2]}:ro" in SERVICES["prometheus"]["volumes"]


def test_no_input_of_the_action_is_unused_or_pasted_into_a_script() -> None:
    steps = ACTION["runs"]["steps"]
    used = {
        found
        for step in steps
        for value in step.get("env", {}).values()
        for found in re.findall(r"inputs\.([\w-]+)", value)
    }
    assert used == set(ACTION["inputs"])
    assert not [step["name"] for step in steps if "${{" in step.get("run", "")]
    given = set(re.findall(r'"([\w-]+)": ', (DEPLOY / "action" / "start.sh").read_text())) & set(ACTION["outputs"])
    assert given == set(ACTION["outputs"])


def test_kernels_are_cached_where_the_server_keeps_them() -> None:
    """By a key of all that they depend on."""
    install, restored, started = ACTION["runs"]["steps"]
    assert restored["with"]["path"] == started["env"]["NEURONSERVE_KERNEL_CACHE_DIR"]
    written = re.findall(r'^echo "(\w+)=', install["run"], re.MULTILINE)
    assert set(re.findall(r"steps\.install\.outputs\.(\w+)", restored["with"]["key"])) == set(written)
    assert restored["with"]["key"].startswith(restored["with"]["restore-keys"])
    (code,) = re.findall(r'-c "(.+)"\)$', install["run"], re.MULTILINE)
    asked = [sys.executable, "-c", code]
    keys = [
        subprocess.run(asked, env=environment(**cpu), capture_output=True, text=True, check=True).stdout
        for cpu in ({}, {}, {"NUMBA_CPU_NAME": "x86-64-v2"})
    ]
    assert keys[0] == keys[1] != keys[2]
    assert re.fullmatch("[0-9a-f]{16}\n", keys[0])


def start(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the action's second step as a runner does."""
    files = {name: str(tmp_path / name) for name in ("GITHUB_ENV", "GITHUB_OUTPUT")}
    env = environment(PYTHON=sys.executable, RUNNER_TEMP=str(tmp_path), **files, **variables)
    script = str(DEPLOY / "action" / "start.sh")
    limit = 5 * PATIENCE_S
    return subprocess.run([script], env=env, capture_output=True, text=True, timeout=limit, check=False)


@pytest.mark.thorough
def test_the_action_leaves_a_server_to_the_job(tmp_path: Path, kernel_cache: str) -> None:
    ran = start(tmp_path, ARGS=f"--max-num-seqs 2 --kernel-cache-dir {kernel_cache}", NEURONSERVE_DEVICE="inf2.8xlarge")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    pid = json.loads((tmp_path / "neuronserve.json").read_text())["pid"]
    try:
        job = dict(line.split("=", 1) for line in (tmp_path / "GITHUB_ENV").read_text().splitlines())
        outputs = dict(line.split("=", 1) for line in (tmp_path / "GITHUB_OUTPUT").read_text().splitlines())
        assert job["OPENAI_BASE_URL"] == outputs["base-url"]
        listed = httpx.get(job["OPENAI_BASE_URL"] + "/models").json()["data"]
        assert [model["id"] for model in listed] == [outputs["model"]]
        assert "ready: " in Path(outputs["log"]).read_text()
    finally:
        os.kill(pid, signal.SIGTERM)
        until(lambda: not is_running(pid))


@pytest.mark.thorough
def test_the_action_fails_with_the_log_of_a_server_that_does_not_start(tmp_path: Path) -> None:
    ran = start(tmp_path, NEURONSERVE_DEVICE="inf9.xlarge")
    assert ran.returncode == 1
    assert "::error::" in ran.stdout
    assert "inf9.xlarge" in ran.stdout
