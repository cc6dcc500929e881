"""The command beside an application that has packages of the same names as ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neuronserve import COMMAND
from tests.api.serving import PATIENCE_S, ROOT, environment
from tests.depth import thorough

SCRIPT = """import sys
from neuronserve.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""  # what installers write
SHADOWS = ("server", "loadtests", "numpy", "fastapi")


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A directory with packages that only it may import."""
    for name in SHADOWS:
        (tmp_path / "app" / name).mkdir(parents=True)
        (tmp_path / "app" / name / "__init__.py").write_text("raise RuntimeError('this is the application')\n")
    return tmp_path / "app"


@pytest.mark.parametrize("is_script", [False, thorough(True)])
def test_an_applications_packages_do_not_take_the_place_of_ours(
    application: Path, kernel_cache: str, is_script: bool
) -> None:
    """All of it runs: engine, tokenizer and chat template are processes that are started with the same path."""
    script = application / "bin" / "neuronserve"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (application / "in.jsonl").write_text(json.dumps(line) + "\n")
    start = (sys.executable, str(script)) if is_script else COMMAND
    ended = subprocess.run(
        [*start, "run-batch", "-i", "in.jsonl", "-o", "out.jsonl", "--kernel-cache-dir", kernel_cache],
        cwd=application,
        env=environment(PYTHONPATH=f".:{application}:{ROOT}", NUMBA_DISABLE_JIT="1"),  # to debug its own kernels
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads((application / "out.jsonl").read_text())["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("ls --url http://127.0.0.1:1", "no server answers at"),
        ("serve", "the working directory has been removed"),
    ],
)
def test_a_working_directory_that_is_gone_is_needed_by_those_alone_that_start_processes(
    tmp_path: Path, command: str, says: str
) -> None:
    (tmp_path / "gone").mkdir()
    ended = subprocess.run(
        ["sh", "-c", f'rmdir ../gone; exec "$@" {command}', "sh", *COMMAND],
        cwd=tmp_path / "gone",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (says in ended.stderr, "Traceback" in ended.stderr) == (True, False), ended.stderr
