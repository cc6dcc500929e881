"""A release: its notes, and in the long suite its files, twice the same, and their first minute on each Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import httpx
import pytest

from tools.release import ROOT, ReleaseError, notes, release

PYTHON = Path(sys.prefix, "release", "bin", "python")  # made by `make release`
PYTHONS = ("python3.11", "python3.12", "python3.13")
LOG = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.2.0 - 2026-01-01\n\n- a\n- b\n\n## 0.1.0\n\n- first\n"
FIRST_MINUTE = """
import sys
from neuronserve.testing import running_server
with running_server() as server:
    print(server.url, flush=True)
    sys.stdin.readline()
"""


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
def test_a_clean_environment_answers_in_its_first_minute(dist: Path, tmp_path: Path, python: str) -> None:
    """The wheel alone, the built-in model, and README's streamed question."""
    if not shutil.which(python) or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} is not installed")
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True, env=environment)
    inside = str(tmp_path / "venv" / "bin" / "python")
    install = [inside, "-m", "pip", "install", "--quiet", str(next(dist.glob("*.whl")))]
    subprocess.run(install, check=True, env=environment)
    command = [inside, "-c", FIRST_MINUTE]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url = f"{server.stdout.readline().strip()}/v1/chat/completions"
        body = {"stream": True, "messages": [{"role": "user", "content": "Hello! What can you do?"}]}
        events = httpx.post(url, json=body, timeout=60).raise_for_status().text.split("\n\n")
        server.stdin.write("\n")
        server.stdin.flush()
        assert server.wait(60) == 0
    assert events[-2] == "data: [DONE]"
    assert len(events) > 5
