"""Measurements of a run, compared with a server that recorded when it sent each token.

Both are in this process and share one clock, so the only error is the time from the mock's write to the read. A busy
host can delay requests, but hardly all of them: the least delayed one is held to a wide bound, which catches a wrong
definition and not a slow machine.
"""

from __future__ import annotations

import asyncio
import math
import time

import httpx
import pytest

from neuronserve.loadtests import http_client
from neuronserve.loadtests.mock_server import MockServer, Script, ServedRequest
from neuronserve.loadtests.records import RequestRecord
from tests.loadtests.driving import by_id, run_on, run_script

READ_DELAY_S = 0.25  # of a busy host; the script's own times are longer


def true_times(server: MockServer) -> dict[str, ServedRequest]:
    return {served.headers["x-request-id"]: served for served in server.served}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
async def test_latencies_are_those_of_the_script(backend: str) -> None:
    script = Script(ttft_s=0.3, itl_s=0.05)
    measurement, server = await run_script(
        script, endpoint={"backend": backend}, arrival={"request_rate": 20.0}, dataset={"random_output_len": 6}
    )
    records, truth = by_id(measurement), true_times(server)
    assert records.keys() == truth.keys()
    ttft_errors, decode_errors = [], []
    for request_id, record in records.items():
        times = truth[request_id].token_times
        assert record.is_ok
        assert record.output_tokens == len(times) == 6
        assert record.ttft_s is not None
        ttft_errors.append(record.ttft_s - (times[0] - truth[request_id].received))
        decode_errors.append(abs(record.latency_s - record.ttft_s - (times[-1] - times[0])))
        assert record.tpot_s == pytest.approx((record.latency_s - record.ttft_s) / 5)
        assert len(record.itls_s) == 5
        assert sum(record.itls_s) == pytest.approx(record.latency_s - record.ttft_s, abs=1e-5)
    assert -0.002 <= min(ttft_errors) <= READ_DELAY_S
    assert min(decode_errors) <= READ_DELAY_S


async def test_latency_ends_at_the_last_token_and_not_at_done() -> None:
    """The script's times are of tokens only; the mock's [DONE] comes after, and usage between."""
    measurement, server = await run_script(Script(ttft_s=0.05, itl_s=0.02), dataset={"num_prompts": 1})
    [record], [served] = measurement.outcome.records, server.served
    assert record.end_s - record.sent_s == pytest.approx((record.ttft_s or 0) + sum(record.itls_s), abs=1e-5)
    assert len(served.token_times) == 5


async def test_the_same_server_by_a_plain_httpx_client() -> None:
    """An independent measurement, one request after the other: TTFT and TPOT agree."""
    async with MockServer(Script(ttft_s=0.1, itl_s=0.02)) as server:
        ours = await run_on(server, arrival={"max_concurrency": 1}, dataset={"num_prompts": 3, "random_output_len": 8})
        theirs = [await plain_request(server.url) for _ in range(3)]
    # The fastest of each: what else runs on the host can only add.
    assert min(r.ttft_s or 9 for r in ours.outcome.records) == pytest.approx(min(t for t, _ in theirs), rel=0.5)
    assert min(r.tpot_s or 9 for r in ours.outcome.records) == pytest.approx(min(t for _, t in theirs), rel=0.5)


async def plain_request(url: str) -> tuple[float, float]:
    """Return TTFT and TPOT of one request, in seconds, by a plain client."""
    body = {"model": "mock", "prompt": [1, 2, 3], "max_tokens": 8, "stream": True}
    times: list[float] = []
    async with httpx.AsyncClient(timeout=20) as client:
        start = time.monotonic()
        async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            times.extend([time.monotonic() async for line in lines if '"text": "t' in line])
    return times[0] - start, (times[-1] - times[0]) / (len(times) - 1)


async def test_open_loop_does_not_wait_for_a_slow_server() -> None:
    """The server holds back all answers until the tenth request: a waiting generator would wait forever."""
    measurement, _ = await run_script(
        Script(hold_until=10), arrival={"arrival": "constant", "request_rate": 50.0}, dataset={"num_prompts": 10}
    )
    records = sorted(measurement.outcome.records, key=number)
    assert all(record.is_ok for record in records)
    assert [record.intended_s for record in records] == pytest.approx([i / 50 for i in range(10)])


def number(record: RequestRecord) -> int:
    return int(record.request_id.rpartition("-")[2])


async def test_a_concurrency_limit_hides_in_ttft_but_not_in_intended_ttft() -> None:
    """Four requests at once with one open at a time: the last waits for three answers, which only one metric shows."""
    measurement, _ = await run_script(
        Script(ttft_s=0.2, itl_s=0.0),
        arrival={"arrival": "burst", "max_concurrency": 1},
        dataset={"num_prompts": 4, "random_output_len": 1},
    )
    records = sorted(measurement.outcome.records, key=number)
    assert all(record.delay_s >= 0.19 * i for i, record in enumerate(records))
    assert min(record.ttft_s or 9 for record in records[1:]) < records[-1].delay_s
    assert measurement.outcome.lag.send_lag_max_ms < 1000 * records[-1].delay_s  # it is the limit's doing


async def test_closed_loop_keeps_so_many_open_and_no_more() -> None:
    most = 0
    async with MockServer(Script(ttft_s=0.03)) as server:
        run = asyncio.create_task(run_on(server, arrival={"max_concurrency": 3}, dataset={"num_prompts": 12}))
        while not run.done():
            most = max(most, sum(len(served.token_times) < 5 for served in server.served))
            await asyncio.sleep(0.002)
        measurement = await run
    assert most == 3
    assert len(measurement.outcome.records) == 12
    assert measurement.plan.arrival == "closed"


async def test_a_closed_loop_ends_at_its_duration() -> None:
    measurement, _ = await run_script(
        Script(ttft_s=0.05), arrival={"max_concurrency": 2, "duration_s": 0.4}, dataset={"num_prompts": 500}
    )
    assert 2 <= len(measurement.outcome.records) < 40
    assert all(record.is_ok for record in measurement.outcome.records)


async def test_connections_are_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "IDLE_LIMIT_S", math.inf)  # a busy host may stop between two requests for longer
    async with MockServer(Script()) as server:
        await run_on(server, arrival={"max_concurrency": 1}, dataset={"num_prompts": 6})
        # One for the hello and the six requests; it is closed at the end.
        assert len(server.served) == 6
        assert len({served.headers["x-request-id"] for served in server.served}) == 6
        assert server.num_connections == 1


@pytest.mark.slow
async def test_warm_up_comes_first_with_prompts_of_its_own_and_counts_for_nothing() -> None:
    measurement, server = await run_script(Script(), run={"num_warmups": 3})
    ids = [served.headers["x-request-id"] for served in server.served]
    assert all("warmup" in name for name in ids[:3])
    assert not any("warmup" in name for name in ids[3:])
    assert len(measurement.outcome.records) == 8
    prompts = [tuple(served.body["prompt"]) for served in server.served]
    assert len(set(prompts)) == 11


async def test_bodies_ask_for_exact_lengths() -> None:
    _, server = await run_script(Script(), dataset={"num_prompts": 1}, endpoint={"extra_body": {"top_p": 0.5}})
    body = server.served[0].body
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (5, 5, True)
    assert body["stream_options"] == {"include_usage": True}
    assert body["top_p"] == 0.5
    assert len(body["prompt"]) == 12


async def test_without_ignore_eos_the_server_may_stop_early() -> None:
    measurement, server = await run_script(Script(fault=lambda _: "too_few"), run={"ignore_eos": False})
    assert all(record.is_ok and record.output_tokens == 4 for record in measurement.outcome.records)
    assert "min_tokens" not in server.served[0].body


@pytest.mark.slow
async def test_a_seed_repeats_the_run_and_another_does_not() -> None:
    async with MockServer(Script()) as server:
        for seed in (1, 1, 2):
            await run_on(server, run={"seed": seed})
    prompts = [sorted(tuple(s.body["prompt"]) for s in server.served[i : i + 8]) for i in (0, 8, 16)]
    assert prompts[0] == prompts[1] != prompts[2]


async def test_later_turns_repeat_the_conversation_with_the_server_s_own_answers() -> None:
    measurement, server = await run_script(
        Script(), dataset={"dataset_name": "multi-turn", "num_prompts": 3, "num_turns": 3, "prefix_len": 4}
    )
    first, second, third = (served.body["prompt"] for served in server.served)
    assert len(first) == 16
    assert second[:16] == first
    assert second[16:21] == [0, 1, 2, 3, 4]  # ids that the mock gave
    assert third[: len(second)] == second
    assert len(third) == 16 + 2 * (5 + 12)
    assert [record.turn for record in measurement.outcome.records] == [0, 1, 2]


async def test_chat_turns_repeat_the_messages() -> None:
    _, server = await run_script(
        Script(),
        endpoint={"backend": "openai-chat"},
        dataset={"dataset_name": "multi-turn", "num_prompts": 2, "num_turns": 2},
    )
    messages = server.served[1].body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == "t0 t1 t2 t3 t4 "
    assert messages[0] == server.served[0].body["messages"][0]


async def test_device_seconds_come_from_usage_and_only_from_there() -> None:
    told, _ = await run_script(Script(device_seconds_per_token=0.01))
    silent, _ = await run_script(Script())
    assert all(record.device_seconds == pytest.approx(0.17) for record in told.outcome.records)
    assert all(record.device_seconds is None for record in silent.outcome.records)
