"""A server with macOS's replacements of Linux features: it must not touch any name that only Linux has.

python/sitecustomize.py stands for macOS. The C library, the file system and the compiler are this host's; the tests
show only that the server asks for nothing that a Mac lacks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from neuronserve import COMMAND
from neuronserve.testing import Server, running_server

ROOT, PYTHON = Path(__file__).resolve().parents[2], Path(__file__).with_name("python")
PROMPT = {"model": "default", "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="here is no Linux to be taken for a Mac")


@pytest.fixture(scope="module")
def temporary() -> Iterator[Path]:
    """Yield a directory with a path as long as macOS gives every user."""
    path = Path("/tmp", f"var-{os.getpid()}".ljust(len("/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T/") - 6, "x"))
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def server(temporary: Path, kernel_cache: str) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", f"{PYTHON}{os.pathsep}{ROOT}")
        patched.setenv("TMPDIR", str(temporary))
        with running_server(args=["--kernel-cache-dir", kernel_cache], timeout_s=600) as ready:
            yield ready
    assert not list(temporary.glob("neuronserve-*"))


def streamed(server: Server, num_tokens: int) -> Iterator[str]:
    """Yield the text of one completion, an item for each event."""
    body = {**PROMPT, "max_tokens": num_tokens, "stream": True}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]


def engine(server: Server) -> psutil.Process:
    """Return the engine's process, by its heartbeat."""
    (found,) = (
        each
        for each in psutil.Process(server.pid).children(recursive=True)
        if any("neuronserve-heartbeat" in file.path for file in each.memory_maps())
    )
    return found


def test_an_engine_is_spawned_by_the_server_itself_and_answers(server: Server) -> None:
    assert engine(server).ppid() == server.pid
    assert len("".join(streamed(server, 8)).split()) > 1


def test_a_stream_outlives_its_engine_and_is_the_same(server: Server) -> None:
    want = "".join(streamed(server, 200))
    killed, got = engine(server), []
    for text in streamed(server, 200):
        got.append(text)
        if len(got) == 3:
            killed.kill()
    assert "".join(got) == want
    assert engine(server).pid != killed.pid


def test_a_hangup_of_the_terminal_does_not_end_an_engine(server: Server) -> None:
    before = engine(server)
    before.send_signal(signal.SIGHUP)
    assert "".join(streamed(server, 4))
    assert engine(server) == before


def test_templates_and_grammars_are_held_to_their_memory(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Once"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }
    answer = httpx.post(f"{server.base_url}/chat/completions", json={**body, "max_tokens": 60, "temperature": 0})
    assert answer.status_code == 200
    assert set(json.loads(answer.json()["choices"][0]["message"]["content"])) == {"a"}


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (["doctor", "--port", "0"], 0, "kernel cache"),
        (["serve", "--port", "0", "--cpu-binding", "auto"], 2, "this system cannot bind threads to CPUs"),
    ],
)
def test_commands_know_where_they_are(
    kernel_cache: str, temporary: Path, command: list[str], status: int, words: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{PYTHON}{os.pathsep}{ROOT}", "TMPDIR": tempfile.gettempdir()}
    whole = [*COMMAND, *command, "--kernel-cache-dir", kernel_cache]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, words in " ".join((done.stdout + done.stderr).split())) == (status, True)
