"""Engines that compute prompts and engines that decode: the streams of one engine, whatever dies between them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.server.api.http.origin import DEVICE_USAGE_HEADER
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, run_command, running_server
from tests.api.telemetry.scraping import scrape
from tests.api.test_data_parallel import answers
from tests.api.test_life import TEXT, events, until

ONE_AND_TWO = ("--disaggregate", "prefill:1,decode:2")
BLOCK = 32
BODIES: list[dict[str, Any]] = [
    *({"prompt": "a shared beginning of one block and more " * i, "max_tokens": 4 + i, "seed": i} for i in range(1, 6)),
    {"prompt": "w" * BLOCK * 3, "max_tokens": 9, "temperature": 0},  # ends with a block
    {"prompt": "short", "max_tokens": 9},
    {"prompt": "o" * 70, "max_tokens": 1},
    {"prompt": "n" * 70, "max_tokens": 12, "n": 3, "seed": 5},
    {"prompt": "l" * 70, "max_tokens": 6, "logprobs": 2, "echo": True},
    {"prompt": "p" * 70, "max_tokens": 12, "presence_penalty": 1.5, "min_tokens": 4, "stop": ["e"]},
    {"prompt": [7] * 200, "max_tokens": 300},
]


@pytest.fixture(scope="module")
def divided(checkpoint: Path) -> Iterator[Server]:
    with running_server(checkpoint, *ONE_AND_TWO) as server:
        yield server


def by_engine(server: Server, name: str, **labels: str) -> list[float]:
    seen = scrape(server.url)
    return [seen.value(name, engine=engine, **labels) for engine in "012"]


def test_streams_are_those_of_one_engine(server: Server, divided: Server) -> None:
    assert answers(divided.url, BODIES) == answers(server.url, BODIES)
    first, *others = by_engine(divided, "vllm:generation_tokens_total")
    # The first engine makes first tokens alone; the short prompt has no block to copy.
    assert first == sum(body.get("n", 1) for body in BODIES) - 1
    assert min(others) > 0
    assert not by_engine(divided, "neuronserve:recovered_sequences_total", outcome="resumed")[0]


def test_whole_blocks_are_copied_and_only_the_rest_is_computed_again(divided: Server) -> None:
    name = "neuronserve:handed_over_prompt_tokens_total"
    before = [by_engine(divided, name, kind=kind) for kind in ("copied", "computed")]
    body = {"prompt": "x" + "y" * (4 * BLOCK + 4), "max_tokens": 5, "ignore_eos": True}
    usage = httpx.post(divided.url + TEXT, json=body).json()["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0  # a copy saves the client nothing
    copied, computed = (
        [b - a for a, b in zip(old, by_engine(divided, name, kind=kind), strict=True)]
        for old, kind in zip(before, ("copied", "computed"), strict=True)
    )
    assert (copied[0], sum(copied)) == (0, 4 * BLOCK)
    assert (computed[0], sum(computed)) == (0, 5)
    seen = scrape(divided.url)
    assert seen.value("vllm:kv_offload_total_bytes_total", transfer_type="PEER_to_GPU") >= 4 * BLOCK * 8
    assert seen.value("vllm:external_prefix_cache_hits_total") >= 4 * BLOCK
    assert by_engine(divided, "vllm:num_requests_running") == [0, 0, 0]


def test_a_request_may_ask_for_an_engine_that_decodes(divided: Server) -> None:
    before = by_engine(divided, "vllm:generation_tokens_total")
    headers = {"X-data-parallel-rank": "2"}
    httpx.post(divided.url + TEXT, json={"prompt": "z" * 99, "max_tokens": 8, "ignore_eos": True}, headers=headers)
    after = by_engine(divided, "vllm:generation_tokens_total")
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, 0, 8]


@pytest.mark.slow
def test_the_default_model_gives_the_tokens_of_one_engine(real_server: Server, kernel_cache: str) -> None:
    options = ("--kernel-cache-dir", kernel_cache, "--cpu-threads", "3", "--device", "inf2.24xlarge", *ONE_AND_TWO)
    bodies = [
        {"prompt": f"{start} " * 20, "max_tokens": 24, "temperature": temperature, "seed": 7, "logprobs": 1}
        for start in ("Once upon a time there was", "Count to five:", "1, 2, 3,")
        for temperature in (0.0, 0.8)
    ]
    expected = answers(real_server.url, bodies)
    with running_server(DEFAULT_MODEL, *options, program="neuronserve") as three:
        assert answers(three.url, bodies) == expected
        seen = scrape(three.url)
        asked = httpx.post(three.url + TEXT, json=bodies[0], headers={DEVICE_USAGE_HEADER: "true"})
    assert seen.value("neuronserve:handed_over_prompt_tokens_total", kind="copied") > 6 * BLOCK
    assert asked.json()["usage"]["neuronserve"]["device_seconds"] > 0


SLOW = ("--device", "slow:0.02", "--max-num-batched-tokens", "64", "--max-num-seqs", "16")
LONG_ONES: list[dict[str, Any]] = [
    {"prompt": f"{i} is a long prompt, " * (10 + i), "max_tokens": 40, "seed": i, "ignore_eos": True} for i in range(8)
]


@pytest.mark.parametrize("restarts", ["0", "3"])
@pytest.mark.parametrize("rank", [0, 1], ids=["prefill", "decode"])
def test_no_stream_is_lost_with_an_engine(server: Server, checkpoint: Path, rank: int, restarts: str) -> None:
    expected = answers(server.url, LONG_ONES)
    with (
        running_server(checkpoint, *ONE_AND_TWO, *SLOW, "--max-engine-restarts", restarts) as divided,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(answers, divided.url, LONG_ONES)
        until(lambda: by_engine(divided, "vllm:num_requests_running")[rank] > 0)
        os.kill(divided.engine_pids[rank], signal.SIGKILL)
        assert asked.result() == expected
        if restarts != "0":
            until(lambda: by_engine(divided, "neuronserve:engine_up") == [1, 1, 1])
        assert answers(divided.url, LONG_ONES) == expected
        until(lambda: by_engine(divided, "vllm:num_requests_running") == [0, 0, 0])


def test_a_client_that_leaves_ends_its_sequence_on_either_side(checkpoint: Path) -> None:
    with running_server(checkpoint, *ONE_AND_TWO, *SLOW) as divided:
        for most in (0, 3):
            body = {**LONG_ONES[7], "stream": True}
            with httpx.stream("POST", divided.url + TEXT, json=body, timeout=60) as response:
                lines = events(response)
                for _ in range(most):
                    next(lines)
                until(lambda: sum(by_engine(divided, "vllm:num_requests_running")) == 1)
            until(lambda: by_engine(divided, "vllm:num_requests_running") == [0, 0, 0])
        assert answers(divided.url, LONG_ONES[:1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--disaggregate", "prefill:0,decode:2"), "'prefill:0,decode:2': it is prefill:P,decode:D with at least 1 of"),
        (("--disaggregate", "2"), "disaggregate is '2'"),
        ((*ONE_AND_TWO, "--data-parallel-size", "2"), "--data-parallel-size is 2: --disaggregate is 3"),
        ((*ONE_AND_TWO, "--no-enable-prefix-caching"), "enable_prefix_caching is false"),
        ((*ONE_AND_TWO, "--kept-kv-cache-gib", "0"), "kept_kv_cache_gib 0 has no room"),
    ],
)
def test_what_cannot_be_divided_is_refused(checkpoint: Path, options: tuple[str, ...], message: str) -> None:
    ended = run_command("serve", str(checkpoint), "--port", "0", *options)
    assert ended.returncode == 2
    assert message in ended.stderr
