"""An installation: one top-level name, typed, with every file that the command reads."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.deploy.chart import ROOT

APPLICATION = """
from neuronserve.testing import Server, running_server

def ask(server: Server) -> str:
    return server.base_url

def wrong(server: Server) -> int:
    return server.base_url
"""


def test_the_links_below_neuronserve_are_the_folders_beside_it() -> None:
    for name in ("server", "planner", "console", "testkit", "loadtests", "workload"):
        link = ROOT / "neuronserve" / name
        assert link.is_symlink(), name
        assert link.resolve() == ROOT / name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        check=True,
    )
    return next(folder.glob("neuronserve-*.whl"))


@pytest.mark.thorough
def test_a_wheel_has_one_top_level_name_and_all_files_of_the_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].removesuffix(".dist-info").split("-")[0] for name in names} == {"neuronserve"}
    tracked = subprocess.run(
        ["git", "ls-files", "server", "planner", "console", "testkit", "loadtests", "workload"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    assert {f"neuronserve/{name}" for name in tracked if name} <= names
    assert "neuronserve/py.typed" in names


@pytest.mark.thorough
def test_an_application_is_checked_against_the_types_of_the_installation(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment)
    (site,) = environment.glob("lib/python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "application.py").write_text(APPLICATION)
    python = environment / "bin" / "python"
    argv = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "application.py"]
    checked = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Incompatible return value type" in checked.stdout
    assert "Found 1 error in 1 file" in checked.stdout, checked.stdout
