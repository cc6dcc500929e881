"""Pipeline stages over HTTP: the answers of one stage, whichever process computes a layer, and whichever dies."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, run_command, running_server, until
from tests.api.staging import running_stage

CHAT = "/v1/chat/completions"
STORY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}]}
SCHEMA = {"type": "array", "items": {"enum": [100, 200]}, "minItems": 3, "maxItems": 12}
FORM = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": SCHEMA}}
BODIES: list[dict[str, Any]] = [
    {**STORY, "max_tokens": 60, "temperature": 0, "logprobs": True, "top_logprobs": 2},
    {**STORY, "max_tokens": 40, "temperature": 0.7, "seed": 3, "n": 3},
    {**STORY, "response_format": FORM, "seed": 1},
]


@contextmanager
def serving(kernel_cache: str, *options: str) -> Iterator[Server]:
    limits = ("--max-num-seqs", "8", "--max-model-len", "512", "--cpu-threads", "1", "--kernel-cache-dir", kernel_cache)
    with running_server(DEFAULT_MODEL, *limits, *options, program="neuronserve") as server:
        yield server


def answers(server: Server) -> list[Any]:
    return [httpx.post(server.url + CHAT, json=body, timeout=60).json()["choices"] for body in BODIES]


def streamed(server: Server, pid: int | None = None) -> str:
    """Return the text of a long stream; the process is killed once its first tokens have come."""
    text, body = "", {**STORY, "max_tokens": 200, "temperature": 0, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                if pid is not None and len(text) > 20:
                    os.kill(pid, signal.SIGKILL)
                    pid = None
    assert pid is None
    return text


@pytest.fixture(scope="module")
def expected(kernel_cache: str) -> tuple[list[Any], str]:
    """Answers and a stream of one stage."""
    with serving(kernel_cache) as server:
        return answers(server), streamed(server)


def stage_pids(server: Server) -> list[int]:
    return [int(pid) for pid in re.findall(r"stage \d, process (\d+):", server.log)]


def test_stages_of_one_host_answer_as_one_and_a_dead_one_is_not_noticed(
    kernel_cache: str, expected: tuple[list[Any], str]
) -> None:
    with serving(kernel_cache, "--pipeline-parallel-size", "3", "--device", "inf2.24xlarge") as server:
        inventory = httpx.get(server.url + "/inventory", timeout=10).json()
        assert inventory["device"]["cores_used"] == 3
        assert (answers(server), streamed(server)) == expected
        pids = stage_pids(server)
        assert len(pids) == 2
        assert streamed(server, pids[1]) == expected[1]
        assert answers(server) == expected[0]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_stages_on_other_hosts_serve_who_knows_the_key(
    kernel_cache: str, expected: tuple[list[Any], str], tmp_path: Path
) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("0123456789abcdef")
    other.write_text("another key, not the same")
    with ExitStack() as stack:
        hosts = [stack.enter_context(running_stage(DEFAULT_MODEL, kernel_cache, key)) for _ in range(2)]
        addresses = [option for address in hosts for option in ("--pipeline-stages", address)]
        options = ("--pipeline-parallel-size", "3", "--device", "trn1.32xlarge", *addresses)
        refused = run_command(
            *("serve", str(DEFAULT_MODEL), "--port", "0", "--kernel-cache-dir", kernel_cache, *options),
            *("--pipeline-key-file", str(other)),
            program="neuronserve",
        )
        assert refused.returncode != 0
        assert f"the pipeline stage at {hosts[0]} has another key" in refused.stderr
        server = stack.enter_context(serving(kernel_cache, *options, "--pipeline-key-file", str(key)))
        assert (answers(server), streamed(server)) == expected
        assert streamed(server, stage_pids(server)[0]) == expected[1]  # a new first stage asks the same hosts
        assert streamed(server, server.engine_pid) == expected[1]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--pipeline-parallel-size", "99"), "less than or equal to 64"),
        (("--pipeline-parallel-size", "3", "--pipeline-stages", "a:1"), "needs 2"),
        (("--pipeline-parallel-size", "2", "--pipeline-stages", "a:1"), "needs pipeline_key_file"),
        (("--pipeline-parallel-size", "40", "--device", "inf2.48xlarge"), "from 1 to the model's 6 layers"),
        (("--pipeline-parallel-size", "3", "--device", "inf2.xlarge"), "needs 3 NeuronCores"),
        (("--pipeline-parallel-size", "2", "--enable-lora", "--device", "inf2.24xlarge"), "enable_lora is set"),
    ],
)
def test_what_cannot_be_divided_is_refused(kernel_cache: str, options: tuple[str, ...], complaint: str) -> None:
    found = run_command(
        *("serve", str(DEFAULT_MODEL), "--port", "0", "--kernel-cache-dir", kernel_cache, *options),
        program="neuronserve",
    )
    assert found.returncode != 0
    assert complaint in found.stderr
