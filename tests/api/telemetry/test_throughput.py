"""The line about throughput: rates of its own interval, and silence when nothing happens."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from test_watch import report, token

from neuronserve.server.api.telemetry.stats_log import ThroughputLog
from neuronserve.server.clock import ManualClock
from neuronserve.server.link.messages import Tokens
from tests.api.serving import read_until, running_server

BODY = {"prompt": "a" * 40, "max_tokens": 8, "ignore_eos": True}


def test_rates_are_of_the_interval_and_an_idle_one_says_nothing() -> None:
    clock = ManualClock()
    stats = ThroughputLog(clock)
    assert stats.line() is None
    clock.advance(10)
    stats.record(Tokens([token("a", 0, 1.0)], report(num_prefill_tokens=40, prefix_queries=80, prefix_hits=20)))
    stats.record(Tokens([token("a", 1, 1.0)], report(num_waiting=3, prefix_queries=80, prefix_hits=20)))
    assert stats.line() == (
        "prompts 4.0 tokens/s, generation 0.2 tokens/s, running 1, waiting 3, KV cache 40.0%, prefix cache hits 25.0%"
    )
    clock.advance(10)
    assert stats.line() is None
    clock.advance(5)
    stats.record(Tokens([token("a", 2, 1.0)], report(num_free_blocks=10, prefix_queries=80, prefix_hits=20)))
    assert stats.line() == "prompts 0.0 tokens/s, generation 0.2 tokens/s, running 1, waiting 0, KV cache 0.0%"


def test_several_engines_are_one_line_and_the_dead_run_nothing() -> None:
    clock = ManualClock()
    stats = ThroughputLog(clock)
    for is_second_alive in (True, False):
        clock.advance(10)
        stats.is_alive = lambda engine, alive=is_second_alive: engine == 0 or alive
        stats.record(Tokens([token("a", 0, 1.0)], report(num_prefill_tokens=40, prefix_queries=80, prefix_hits=20)))
        busy = report(num_running=2, num_waiting=3, num_free_blocks=4, prefix_queries=20, prefix_hits=5)
        if is_second_alive:
            stats.record(Tokens([token("b", 0, 1.0)], busy), engine=1)
            expected = "generation 0.2 tokens/s, running 3, waiting 3, KV cache 50.0%, prefix cache hits 25.0%"
        else:
            expected = "generation 0.1 tokens/s, running 1, waiting 0, KV cache 40.0%"
        assert stats.line() == f"prompts 4.0 tokens/s, {expected}"


def test_a_busy_server_writes_the_line(checkpoint: Path) -> None:
    with running_server(checkpoint, "--log-stats-interval", "0.2") as server:
        httpx.post(server.url + "/v1/completions", json=BODY)
        assert "generation" in read_until(server.process, rb"INFO prompts [0-9.]+ tokens/s, generation [0-9.]+", 20)


@pytest.mark.slow
def test_the_line_can_be_turned_off_and_metrics_stay(checkpoint: Path) -> None:
    with running_server(checkpoint, "--log-stats-interval", "0.05", "--disable-log-stats") as server:
        for _ in range(20):
            httpx.post(server.url + "/v1/completions", json=BODY)
        assert "vllm:generation_tokens_total" in httpx.get(server.url + "/metrics").text
        server.signal(15)
        assert "tokens/s" not in read_until(server.process, rb"no such line")
