"""`server/` serves without the packages beside it; commands of a package that is missing are refused in one line."""

from __future__ import annotations

import ast
import json
import os
import shutil
import site
import subprocess
import venv
from pathlib import Path

import httpx
import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import PATIENCE_S, ROOT, until, write_checkpoint
from tests.depth import thorough

BESIDE = ("planner", "console", "testkit", "loadtests", "workload")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository's `server` and `neuronserve` alone.

    Its Python finds the installed dependencies, but not this repository, which may be installed beside them.
    """
    root = tmp_path_factory.mktemp("bare")
    venv.create(root / "env", symlinks=True)
    (own,) = root.glob("env/lib/python*/site-packages")
    (root / "tests").symlink_to(ROOT / "tests")  # the fake engine
    (own / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    shutil.copytree(ROOT / "server", root / "server", ignore=shutil.ignore_patterns("__pycache__"))
    ignored = shutil.ignore_patterns("__pycache__", *BESIDE)
    shutil.copytree(ROOT / "neuronserve", root / "neuronserve", symlinks=True, ignore=ignored)
    return root


def environment(kernel_cache: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "NEURONSERVE_KERNEL_CACHE_DIR": kernel_cache}


@pytest.mark.parametrize("program", ["tests.api.serve_fake", thorough("neuronserve")])
def test_a_server_answers_without_the_packages_beside_it(
    bare: Path, kernel_cache: str, program: str, tmp_path: Path
) -> None:
    ready = tmp_path / "ready.json"
    model = write_checkpoint(tmp_path / "fake") if program.startswith("tests") else DEFAULT_MODEL
    argv = [str(bare / "env/bin/python"), "-m", program, "serve", str(model), "--port", "0", "--ready-file", str(ready)]
    process = subprocess.Popen(argv, cwd=bare, env=environment(kernel_cache), stderr=subprocess.PIPE)
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        url = json.loads(ready.read_text())["url"]
        body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert answer.json()["usage"]["completion_tokens"] > 0
        assert httpx.get(f"{url}/console/choices", timeout=PATIENCE_S).status_code == 404
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("plan llama-1b", "planner"),
        ("observe", "is not installed"),
        ("replay talk.jsonl", "testkit"),
        ("bench serve", "loadtests"),
        ("serve --inject-faults rules.yaml", "unrecognized arguments: --inject-faults"),
    ],
)
def test_a_command_of_a_missing_package_is_refused_in_one_line(
    bare: Path, kernel_cache: str, words: str, package: str
) -> None:
    argv = [str(bare / "env/bin/python"), "-m", "neuronserve", *words.split()]
    ended = subprocess.run(
        argv, cwd=bare, env=environment(kernel_cache), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert package in ended.stderr


def test_commands_of_the_server_need_no_other_package(bare: Path, kernel_cache: str) -> None:
    for words in ("completion bash", "ls --device inf2.xlarge"):
        argv = [str(bare / "env/bin/python"), "-m", "neuronserve", *words.split()]
        subprocess.run(argv, cwd=bare, env=environment(kernel_cache), stdout=subprocess.DEVNULL, check=True)


def test_every_package_is_imported_below_one_name() -> None:
    """An application may have a `server` or `loadtests` of its own, so that no file imports ours by such a name."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Import):
                imported = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported = {(node.module or "").split(".")[0]}
            else:
                continue
            assert not imported & {"server", *BESIDE}, f"{name}:{node.lineno}"
