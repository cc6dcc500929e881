"""An installation: one top-level name, typed, with every file that the command reads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.chart import ROOT

PARTS = ("server", "planner", "console", "testkit", "loadtests", "workload", "neuronserve/cli")
# Files that are loaded only where their extra is installed.
WITH_EXTRAS = re.compile(r"/server/ray/|/ray_servers\.py$|/server/route/picker/|/pytest_plugin\.py$")
APPLICATION = """
from neuronserve.testing import Server, running_server

def ask(server: Server) -> str:
    return server.base_url

def wrong(server: Server) -> int:
    return server.base_url
"""


def test_the_links_below_neuronserve_are_the_folders_beside_it() -> None:
    for name in PARTS[:-1]:
        link = ROOT / "neuronserve" / name
        assert link.is_symlink(), name
        assert link.resolve() == ROOT / name


def imported(file: Path) -> set[str]:
    """Return the top-level names of what a file imports at its head, beside this project's own."""
    nodes = ast.parse(file.read_text()).body
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names} - {"neuronserve"} - sys.stdlib_module_names


def test_what_files_import_at_their_head_comes_without_an_extra() -> None:
    """The environment of the tests has the extras, so a command that needs one would fail for users only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    left, brought = list(map(Requirement, project["dependencies"])), set[str]()
    while left:
        needed = left.pop()
        name = canonicalize_name(needed.name)
        if name not in brought:
            brought.add(name)
            markers = [{"extra": extra} for extra in ("", *needed.extras)]
            found = map(Requirement, requires(name) or ())
            left += [each for each in found if each.marker is None or any(map(each.marker.evaluate, markers))]
    providers = packages_distributions()
    files = [file for part in PARTS for file in (ROOT / part).rglob("*.py") if not WITH_EXTRAS.search(str(file))]
    assert len(files) > 500
    missing = {
        (str(file.relative_to(ROOT)), name)
        for file in files
        for name in imported(file)
        if brought.isdisjoint(map(canonicalize_name, providers.get(name, ())))
    }
    assert missing == set()


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
        ["git", "ls-files", *PARTS[:-1]],
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
