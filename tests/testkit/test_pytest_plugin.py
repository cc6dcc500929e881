"""The pytest plugin in other projects: found by its entry point, one server, and no cost if no test uses it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.api.serving import ROOT, is_running

pytest_plugins = "pytester"

USES = """
import os, sys, urllib.request
from pathlib import Path

import server  # the project's own

def test_a_server_answers(neuronserve_server):
    assert server.OWN
    assert not {"numba", "numpy", "fastapi"} & set(sys.modules)
    with urllib.request.urlopen(neuronserve_server.base_url + "/models") as answer:
        assert neuronserve_server.model in answer.read().decode()
    assert neuronserve_server.env["OPENAI_API_KEY"] == neuronserve_server.api_key == "none"
    with urllib.request.urlopen(neuronserve_server.url + "/inventory") as answer:
        assert '"instance":"inf2.8xlarge"' in answer.read().decode()
    Path(f"seen-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}-{__name__}").write_text(
        f"{neuronserve_server.pid}"
    )
"""
NOT_USED = """
import sys

def test_nothing_is_imported():
    names = {"neuronserve.server", "numba", "numpy", "fastapi", "neuronserve.testing", "subprocess.neuronserve"}
    assert not names & set(sys.modules)
    assert "neuronserve.testkit.pytest_plugin" in sys.modules
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kernel_cache: str) -> pytest.Pytester:
    """A project with a package `server` of its own, where neuronserve is installed as pyproject.toml has it."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = pytester.mkdir("site") / "neuronserve-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: neuronserve\nVersion: 0\n")
    lines = "".join(f"{name} = {module}\n" for name, module in entries.items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    (installed / "RECORD").write_text("neuronserve/testkit/pytest_plugin.py,,\nneuronserve/server/__init__.py,,\n")
    pytester.mkpydir("server").joinpath("__init__.py").write_text("OWN = True\n")
    monkeypatch.setenv("PYTHONPATH", f"{pytester.path}:{installed.parent}:{ROOT}")
    monkeypatch.setenv("NEURONSERVE_KERNEL_CACHE_DIR", kernel_cache)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of these tests themselves
    pytester.makeini("[pytest]\nneuronserve_device = inf2.8xlarge\n")
    return pytester


def seen(project: pytest.Pytester) -> dict[str, int]:
    """Return the server's pid that each worker and file has seen."""
    return {path.name: int(path.read_text()) for path in Path(project.path).glob("seen-*")}


def test_a_session_has_one_server_beside_a_package_of_the_same_name(project: pytest.Pytester) -> None:
    project.makeconftest("def pytest_runtest_setup():\n    import neuronserve.testing as it\n    it.REPORT_S = 0\n")
    project.makepyfile(test_a=USES, test_b=USES)
    run = project.runpytest_subprocess("-p", "no:cacheprovider")
    run.assert_outcomes(passed=2)
    run.stderr.fnmatch_lines("neuronserve: * INFO *")  # the start is shown, though pytest captures
    pids = seen(project)
    assert len(pids) == 2
    (pid,) = set(pids.values())
    assert not is_running(pid)


@pytest.mark.thorough
def test_workers_share_one_server(project: pytest.Pytester) -> None:
    project.makepyfile(**{f"test_{name}": USES for name in "abcd"})
    flags = ("-n", "2", "--dist", "loadfile", "--neuronserve-args=--max-num-seqs 4")
    project.runpytest_subprocess("-p", "no:cacheprovider", *flags).assert_outcomes(passed=4)
    pids = seen(project)
    assert {name.split("-")[1] for name in pids} == {"gw0", "gw1"}
    (pid,) = set(pids.values())
    assert not is_running(pid)


def test_without_the_fixture_nothing_is_imported_or_started(project: pytest.Pytester) -> None:
    project.makepyfile(NOT_USED)
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "--neuronserve-model", "none")
    result.assert_outcomes(passed=1)


@pytest.mark.thorough
def test_a_server_that_does_not_start_is_an_error_with_its_last_lines(project: pytest.Pytester) -> None:
    project.makepyfile(USES)
    result = project.runpytest_subprocess("-p", "no:cacheprovider", "--neuronserve-device", "inf9.xlarge")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ServerFailed: the server ended with code 2:*", "*inf9.xlarge*"])
