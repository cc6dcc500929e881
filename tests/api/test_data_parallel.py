"""Several engines behind one port: the same tokens, prefixes that stay where they are, and the death of one of them."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, is_running, run_command, running_server
from tests.api.telemetry.scraping import Scrape, scrape
from tests.api.test_life import LONG, SLOW, TEXT, events, status, until

TWO = ("--data-parallel-size", "2")
BLOCK = 32


@pytest.fixture(scope="module")
def pair(checkpoint: Path) -> Iterator[Server]:
    with running_server(checkpoint, *TWO, "--max-num-queued-reqs", "40") as server:
        yield server


def answers(url: str, bodies: Sequence[dict[str, Any]], path: str = TEXT) -> list[Any]:
    """Texts and finish reasons of the choices of each body; all are asked for at once."""

    def ask(body: dict[str, Any]) -> Any:
        response = httpx.post(url + path, json=body, timeout=120)
        assert response.status_code == 200, response.text
        choices = response.json()["choices"]
        return [(choice.get("text", choice.get("message")), choice["finish_reason"]) for choice in choices]

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(ask, bodies))


def by_engine(seen: Scrape, name: str, **labels: str) -> list[float]:
    return [seen.value(name, engine=engine, **labels) for engine in "01"]


@pytest.mark.slow
def test_tokens_are_those_of_one_engine_whatever_serves_them(server: Server, pair: Server) -> None:
    bodies = [
        {"prompt": f"{i % 3} shared beginning " * (i + 1), "max_tokens": 12 + i, "seed": i, "n": 1 + i % 2}
        for i in range(12)
    ]
    before = scrape(pair.url)
    assert answers(pair.url, bodies) == answers(server.url, bodies)
    seen, name = scrape(pair.url), "vllm:generation_tokens_total"
    gained = [b - a for a, b in zip(by_engine(before, name), by_engine(seen, name), strict=True)]
    assert min(gained) > 0  # both had a part
    assert seen.value("vllm:request_params_n_count") - before.value("vllm:request_params_n_count") == len(bodies)


def test_a_conversation_stays_with_the_engine_that_has_its_prefix(pair: Server) -> None:
    before = scrape(pair.url)
    prompt = "once upon a time, " * 8
    cached = []
    for turn in range(4):
        body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True}
        usage = httpx.post(pair.url + TEXT, json=body, timeout=60).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        prompt += f" and {turn}, " + "more words " * 4
    assert cached[0] == 0
    assert all(b > a for a, b in pairwise(cached))
    seen, name = scrape(pair.url), "vllm:prefix_cache_hits_total"
    gained = [b - a for a, b in zip(by_engine(before, name), by_engine(seen, name), strict=True)]
    assert sorted(gained) == [0, sum(cached)]


def test_a_request_may_ask_for_an_engine(server: Server, pair: Server) -> None:
    name = "vllm:generation_tokens_total"
    for rank in (0, 1):
        before = by_engine(scrape(pair.url), name)
        body = {"prompt": "the same for both", "max_tokens": 4, "n": 3, "ignore_eos": True}
        answer = httpx.post(pair.url + TEXT, json=body, headers={"X-data-parallel-rank": str(rank)})
        assert answer.status_code == 200
        gained = [b - a for a, b in zip(before, by_engine(scrape(pair.url), name), strict=True)]
        assert (gained[rank], gained[1 - rank]) == (12, 0)
    for url, bad in ((pair.url, "2"), (pair.url, "-1"), (pair.url, "one"), (pair.url, "9" * 99), (server.url, "1")):
        refused = httpx.post(url + TEXT, json={"prompt": "a"}, headers={"X-data-parallel-rank": bad})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "X-data-parallel-rank")
    alone = httpx.post(server.url + TEXT, json={"prompt": "a", "max_tokens": 1}, headers={"X-data-parallel-rank": "0"})
    assert alone.status_code == 200


def test_every_engine_has_its_own_series(pair: Server) -> None:
    seen = scrape(pair.url)
    assert by_engine(seen, "neuronserve:engine_up") == [1, 1]
    assert by_engine(seen, "vllm:cache_config_info", num_gpu_blocks="256", block_size="32") == [1, 1]
    for family in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
        assert by_engine(seen, family) == [0, 0]
    engines = {sample.labels["engine"] for sample in seen.samples if "engine" in sample.labels}
    assert engines == {"0", "1"}
    name, reason = "vllm:admission_rejections_total", "max_num_queued_reqs"
    (rejections,) = (s for s in seen.samples if s.name == name and s.labels["reason"] == reason)
    assert "engine" not in rejections.labels


def test_a_reset_forgets_the_prefixes_of_all(pair: Server) -> None:
    body = {"prompt": "r" * 3 * BLOCK, "max_tokens": 1}
    cached = []
    for is_reset in (False, False, True):
        if is_reset:
            assert httpx.post(pair.url + "/reset_prefix_cache").status_code == 200
        usage = httpx.post(pair.url + TEXT, json=body).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 2 * BLOCK, 0]


@pytest.mark.slow
def test_the_queue_is_the_servers_and_choices_spread(checkpoint: Path) -> None:
    with running_server(checkpoint, *TWO, *SLOW, "--max-num-queued-reqs", "4") as server:
        with httpx.stream("POST", server.url + TEXT, json={**LONG, "n": 4, "stream": True}, timeout=60) as response:
            lines = events(response)
            next(lines)
            until(lambda: by_engine(scrape(server.url), "vllm:num_requests_running") == [2, 2])
            assert httpx.post(server.url + TEXT, json=LONG).status_code == 429
        # The client has left: the choices are aborted at both.
        until(lambda: by_engine(scrape(server.url), "vllm:num_requests_running") == [0, 0])
        assert by_engine(scrape(server.url), "vllm:request_success_total", finished_reason="abort") == [2, 2]


class _Streams:
    """Streamed requests that run at the same time; `rests` has what each got after its first event."""

    def __init__(self, server: Server, count: int, max_tokens: int) -> None:
        self._open = ExitStack()
        self._lines = []
        self.rests: list[list[str]] = [[] for _ in range(count)]
        for i in range(count):
            body = {**LONG, "prompt": f"{i} of several", "max_tokens": max_tokens, "stream": True}
            response = self._open.enter_context(httpx.stream("POST", server.url + TEXT, json=body, timeout=60))
            self._lines.append(events(response))
            next(self._lines[-1])

    def finish(self) -> None:
        threads = [threading.Thread(target=self._read, args=(i,)) for i in range(len(self.rests))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self._open.close()

    def _read(self, i: int) -> None:
        self.rests[i] = list(self._lines[i])


def error_code(rest: list[str]) -> str | None:
    """Return the error of a stream that ended with one."""
    error = json.loads(rest[-2]).get("error")
    return error["code"] if error else None


NO_RESTART = "--max-engine-restarts", "0"


def test_the_others_go_on_with_the_requests_of_one_that_is_killed(checkpoint: Path, hold: Path) -> None:
    with running_server(checkpoint, *TWO, *NO_RESTART, "--device", f"hold:{hold}") as server:
        streams = _Streams(server, 2, 100)
        until(lambda: by_engine(scrape(server.url), "vllm:num_requests_running") == [1, 1])
        first, second = server.engine_pids
        os.kill(second, signal.SIGKILL)
        hold.unlink()
        streams.finish()
        assert [error_code(rest) for rest in streams.rests] == [None, None]
        assert all(rest[-1] == "[DONE]" for rest in streams.rests)
        for path in ("/health/ready", "/health", "/health/live"):
            response = httpx.get(server.url + path)
            assert (response.status_code, response.json()) == (503, {"status": "degraded"})
        # What still comes is served by the rest, also what the dead one had cached.
        for _ in range(4):
            assert answers(server.url, [{"prompt": "1 of several", "max_tokens": 2}])
        refused = httpx.post(server.url + TEXT, json=LONG, headers={"X-data-parallel-rank": "1"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
        seen = scrape(server.url)
        assert by_engine(seen, "neuronserve:engine_up") == [1, 0]
        assert sum(by_engine(seen, "vllm:request_success_total", finished_reason="error")) == 0
        assert httpx.post(server.url + "/reset_prefix_cache").status_code == 200
        os.kill(first, signal.SIGKILL)
        until(lambda: httpx.get(server.url + "/health").json() == {"status": "dead"})
        refused = httpx.post(server.url + TEXT, json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        words = server.last_words()
    assert f"engine 1 (pid {second}) was killed by SIGKILL; 0 open sequences end with an error" in words
    assert "the server is degraded: 1 of 2 engines left" in words
    assert "the server is dead: 0 of 2 engines left" in words


@pytest.mark.slow
def test_a_request_with_choices_at_a_faulty_engine_ends_and_leaves_nothing_at_the_other(checkpoint: Path) -> None:
    with running_server(checkpoint, *TWO, *NO_RESTART, *SLOW) as server:
        body = {**LONG, "n": 2, "stream": True}
        with httpx.stream("POST", server.url + TEXT, json=body, timeout=60) as response:
            lines = events(response)
            next(lines)
            until(lambda: by_engine(scrape(server.url), "vllm:num_requests_running") == [1, 1])
            os.kill(server.engine_pids[0], signal.SIGSEGV)
            rest = list(lines)
        assert error_code(rest) == "engine_dead"
        until(lambda: scrape(server.url).value("vllm:num_requests_running", engine="1") == 0)


@pytest.mark.slow
def test_sigterm_waits_for_the_requests_of_all_and_leaves_no_process(checkpoint: Path, hold: Path) -> None:
    with running_server(checkpoint, *TWO, "--device", f"hold:{hold}") as server:
        pids = server.engine_pids
        streams = _Streams(server, 2, 60)
        server.signal(signal.SIGTERM)
        until(lambda: status(server.url, "/health/ready") == 503)
        hold.unlink()
        streams.finish()
        assert [json.loads(rest[-2])["choices"][0]["finish_reason"] for rest in streams.rests] == ["length"] * 2
        assert server.wait() == 0
        until(lambda: not any(map(is_running, pids)))


@pytest.mark.slow
def test_one_that_cannot_start_ends_the_start_with_its_words(checkpoint: Path) -> None:
    ended = run_command("serve", str(checkpoint), "--port", "0", *TWO, "--device", "fail")
    lines = [line for line in ended.stderr.splitlines() if " INFO " not in line]
    assert (ended.returncode, lines) == (
        2,
        ["neuronserve: error: the model does not fit: it needs 99 GiB, the core has 16 GiB"],
    )


@pytest.mark.slow
def test_more_cores_than_the_instance_has_are_refused_with_the_numbers() -> None:
    ended = run_command("serve", "--port", "0", "--data-parallel-size", "3", program="neuronserve")
    assert ended.returncode == 2
    assert "tensor_parallel_size 1 x data_parallel_size 3 needs 3 NeuronCores: inf2.xlarge has 2" in ended.stderr


@pytest.mark.slow
def test_the_default_model_gives_the_tokens_of_one_engine(real_server: Server, kernel_cache: str) -> None:
    kernels = ("--kernel-cache-dir", kernel_cache, "--cpu-threads", "2")
    chat = "/v1/chat/completions"
    bodies = [
        {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 24,
            "temperature": temperature,
            "seed": 7,
        }
        for question in ("Hello!", "What is the capital of France?", "Count to five.")
        for temperature in (0.0, 0.8)
    ]
    expected = answers(real_server.url, bodies, chat)
    with running_server(DEFAULT_MODEL, *kernels, *TWO, program="neuronserve") as two:
        assert answers(two.url, bodies, chat) == expected
        seen = scrape(two.url)
    assert min(by_engine(seen, "vllm:generation_tokens_total")) > 0
    for engine in "01":  # each on a core of its own
        assert seen.value("neuronserve:device_memory_bytes", engine=engine, core=engine, use="weights") > 0
    assert "engine 1: " in two.log
    assert "2 engines like this one, on NeuronCores 0, 1" in two.log
