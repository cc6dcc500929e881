"""Sources of the image: the lock pins every dependency, and the Dockerfile copies only files that exist."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from neuronserve.server.api.endpoints.status import router
from tests.deploy.chart import ROOT
from tools.lock import LOCKS, requirements

DOCKERFILE = (ROOT / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def pins(lock: str) -> dict[str, str]:
    """Name to version; where Pythons differ, the first."""
    found: dict[str, str] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", (ROOT / lock).read_text(), flags=re.M):
        found.setdefault(name, version)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_settles_every_dependency(lock: str) -> None:
    """When this fails, `make lock`."""
    have = pins(lock)
    for text in requirements(lock):
        requirement = Requirement(text)
        version = have.get(re.sub(r"[._]", "-", requirement.name.lower()))
        assert version is not None, f"{requirement.name} is not in {lock}"
        assert version in requirement.specifier, f"{requirement} is {version} in {lock}"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_hashes(lock: str) -> None:
    entries = re.split(r"^(?=[a-z0-9._-]+==)", (ROOT / lock).read_text(), flags=re.M)[1:]
    assert len(entries) >= 1
    assert all("--hash=sha256:" in entry for entry in entries)


def test_torch_is_no_dependency() -> None:
    assert "torch" not in pins("requirements.lock")


def test_the_builder_is_sent_what_the_dockerfile_copies() -> None:
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.M)
    sources = [source.removeprefix("./") for line in copies for source in line.split()]
    assert len(sources) >= 6
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in IGNORED, source


def test_the_build_needs_no_file_that_the_builder_is_not_sent() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name in (project["readme"], *project["license-files"]):
        assert f"!{name}" in IGNORED


def test_the_wheel_gets_every_package_of_the_project() -> None:
    linked = [path.name for path in (ROOT / "neuronserve").iterdir() if path.is_symlink()]
    for name in ("neuronserve", *linked):
        assert f"COPY {name} ./{name}\n" in DOCKERFILE
        assert f"!{name}" in IGNORED


def test_the_base_is_an_argument_with_a_digest_and_nothing_runs_as_root() -> None:
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, flags=re.M)
    assert re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", base)
    assert DOCKERFILE.count("FROM ${PYTHON_IMAGE}") == 2
    final = DOCKERFILE.rpartition("FROM ")[2]
    assert re.search(r"^USER [1-9]\d*:0$", final, flags=re.M)


def test_the_version_of_the_labels_and_the_chart_is_the_projects() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}\n" in DOCKERFILE
    assert f'appVersion: "{version}"' in (ROOT / "helm" / "Chart.yaml").read_text()


def test_the_health_check_asks_a_route_that_exists() -> None:
    probe = ROOT / "deploy" / "healthcheck.py"
    assert re.search(rf"^COPY .*deploy/{probe.name} /opt/", DOCKERFILE, re.MULTILINE)
    assert f'/opt/{probe.name}"]' in DOCKERFILE
    (path,) = re.findall(r"127\.0\.0\.1:\{port\}(/[\w/]+)", probe.read_text())
    assert path in {route.path for route in router.routes}  # type: ignore[attr-defined]
