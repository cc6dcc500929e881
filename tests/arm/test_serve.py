"""First steps of a user of an ARM host, emulated: a server, a streamed answer, and the engine's death during it."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator

import httpx
import psutil
import pytest

from neuronserve import COMMAND
from neuronserve.testing import Server, running_server
from tests.api.serving import is_engine

PROMPT = {"model": "default", "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "max_tokens": 24}
PATIENCE_S = 600.0  # for emulation on a busy machine

pytestmark = pytest.mark.skipif(platform.machine() != "aarch64", reason="this host is no ARM")


@pytest.fixture(scope="module")
def server(kernel_cache: str) -> Iterator[Server]:
    with running_server(args=["--kernel-cache-dir", kernel_cache], timeout_s=PATIENCE_S) as ready:
        yield ready


def streamed(server: Server) -> Iterator[str]:
    """Yield the text of one completion, an item for each event."""
    body = {**PROMPT, "stream": True}
    with httpx.stream("POST", f"{server.base_url}/completions", json=body, timeout=PATIENCE_S) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]


def engine(server: Server) -> psutil.Process:
    """Return the engine's process, by its heartbeat."""
    (found,) = (each for each in psutil.Process(server.pid).children(recursive=True) if is_engine(each.pid))
    return found


def test_a_stream_outlives_its_engine_and_is_the_same(server: Server) -> None:
    want = "".join(streamed(server))
    assert len(want.split()) > 4
    killed, got = engine(server), []
    for text in streamed(server):
        got.append(text)
        if len(got) == 3:
            killed.kill()
    assert "".join(got) == want
    assert engine(server).pid != killed.pid


def test_an_answer_keeps_to_its_grammar(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": "Once"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        "temperature": 0,
        "max_tokens": 60,
    }
    answer = httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200
    assert set(json.loads(answer.json()["choices"][0]["message"]["content"])) == {"a"}


def test_a_bench_names_its_path(kernel_cache: str) -> None:
    options = ["--batch-size", "1", "--input-len", "16", "--output-len", "4", "--num-iters", "1"]
    options += ["--kernel-cache-dir", kernel_cache]
    done = subprocess.run([*COMMAND, "bench", "latency", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "neon-i8mm" in done.stdout
