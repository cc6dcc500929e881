"""A release: its notes, and in the long suite its files, twice the same, and their first minute on each Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.first_minute import NewUser, first_minute
from tools.kernel_wheel import pack
from tools.release import ROOT, ReleaseError, notes, release

PYTHON = Path(sys.prefix, "release", "bin", "python")  # made by `make release`
PYTHONS = ("python3.11", "python3.12", "python3.13")
LOG = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.2.0 - 2026-01-01\n\n- a\n- b\n\n## 0.1.0\n\n- first\n"


@pytest.mark.parametrize(
    ("version", "lines"), [("0.2.0", ["- a", "- b"]), ("0.1.0", ["- first"]), ("0.3.0", ["- new"])]
)
def test_notes_are_the_section_of_the_version(version: str, lines: list[str]) -> None:
    assert notes(LOG, version).splitlines() == [f"# neuronserve {version}", "", *lines]
    with pytest.raises(ReleaseError, match="no section of 9"):
        notes("# Changelog\n", "9")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON.exists():
        pytest.skip("what builds a release is not installed: `make release`")
    folder = tmp_path_factory.mktemp("release") / "dist"
    release(folder, PYTHON)
    return folder


@pytest.mark.thorough
def test_the_same_commit_gives_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    release(tmp_path, PYTHON)
    names = sorted(file.name for file in dist.iterdir())
    assert names == sorted(file.name for file in tmp_path.iterdir())
    assert [name for name in names if (dist / name).read_bytes() != (tmp_path / name).read_bytes()] == []
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dist, check=True)
    with tarfile.open(next(dist.glob("neuronserve-?.?.?.tar.gz"))) as source:
        held = {name.partition("/")[2] for name in source.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert held == set(tracked.split("\n")[:-1])
    materials = json.loads(next(dist.glob("*.cdx.json")).read_text())
    assert {"numpy", "fastapi"} <= {each["name"] for each in materials["components"]}


@pytest.mark.thorough
@pytest.mark.parametrize("python", PYTHONS)
def test_a_new_user_gets_to_a_plan_from_the_wheel_alone(dist: Path, tmp_path: Path, python: str) -> None:
    if not shutil.which(python) or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} is not installed")
    assert len(first_minute(tmp_path, python, list(dist.glob("*.whl")))) >= 8


@pytest.mark.thorough
def test_with_the_wheel_of_kernels_a_first_start_compiles_nothing(dist: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    subprocess.run(
        [sys.executable, "-m", "tools.precompile", "--this-level", "--small", "--directory", compiled], check=True
    )
    user = NewUser(tmp_path, sys.executable)
    user.install(*dist.glob("*.whl"), pack(compiled, tmp_path / "packed", PYTHON))
    with user.served("kernels installed") as url:
        user.ask(url)
    brought, kept = ({file.name for file in folder.rglob("*.nbc")} for folder in (compiled, tmp_path / "cache"))
    assert kept == brought != set()
