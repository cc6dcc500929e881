"""Failures of a server: each is counted by its kind, harms no other request, and loses no record."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from neuronserve.loadtests.errors import EndpointError
from neuronserve.loadtests.http_client import Disconnected, HttpClient
from neuronserve.loadtests.metrics import failures
from neuronserve.loadtests.mock_server import Fault, MockServer, Script
from tests.loadtests.driving import run_on, run_script

KINDS: list[tuple[Fault, str, str]] = [
    ("refuse", "http_429", "the queue is full"),
    ("crash", "http_5xx", "500: out of memory"),
    ("disconnect", "disconnected", "closed the connection"),
    ("stream_error", "stream_error", "the engine has ended"),
    ("not_json", "malformed", "malformed SSE"),
    ("no_stream", "malformed", "'text/html', not 'text/event-stream'"),
    ("not_http", "malformed", "not an HTTP/1.1 answer"),
    ("truncate", "truncated", "neither a finish reason nor"),
    ("too_few", "token_count", "requested exactly 5 tokens, got 4"),
    ("no_token", "empty", "no token"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "kind", "message"), KINDS, ids=[fault for fault, _, _ in KINDS])
async def test_a_fault_is_counted_by_its_kind_and_harms_no_other_request(fault: Fault, kind: str, message: str) -> None:
    script = Script(fault=lambda n: fault if n in {2, 5} else None)
    measurement, _ = await run_script(script, arrival={"max_concurrency": 2})
    records = measurement.outcome.records
    assert failures(records) == {kind: 2}
    assert all(message in (record.error or "") for record in records if not record.is_ok)
    assert sum(record.is_ok for record in records) == 6
    assert all(record.end_s >= record.sent_s for record in records)


async def test_token_ids_that_contradict_usage_are_a_failure() -> None:
    measurement, _ = await run_script(Script(fault=lambda _: "miscount"), run={"return_token_ids": True})
    assert failures(measurement.outcome.records) == {"token_count": 8}
    assert "usage says 6 tokens, but 5 token ids came" in (measurement.outcome.records[0].error or "")


async def test_a_server_that_never_answers_is_a_timeout() -> None:
    script = Script(fault=lambda n: "silent" if n == 0 else None)
    measurement, _ = await run_script(script, endpoint={"request_timeout_s": 0.5})
    assert failures(measurement.outcome.records) == {"timeout": 1}
    assert "in 0.5 s" in next(record.error or "" for record in measurement.outcome.records if not record.is_ok)


async def test_a_server_that_dies_during_the_run_leaves_what_was_done_and_counts_the_rest() -> None:
    async with MockServer(Script(ttft_s=0.05, itl_s=0.02)) as server:
        run = asyncio.create_task(
            run_on(server, arrival={"arrival": "constant", "request_rate": 50.0}, dataset={"num_prompts": 40})
        )
        while sum(len(served.token_times) == 5 for served in server.served) < 5:
            await asyncio.sleep(0.01)
        await server.die()
        measurement = await run
    kinds = failures(measurement.outcome.records)
    assert len(measurement.outcome.records) == 40
    assert sum(record.is_ok for record in measurement.outcome.records) >= 5
    assert kinds["connect"] >= 1
    assert kinds.keys() <= {"connect", "disconnected"}


async def test_a_failed_turn_ends_its_session() -> None:
    script = Script(fault=lambda n: "crash" if n == 1 else None)
    dataset = {"dataset_name": "multi-turn", "num_prompts": 4, "num_turns": 4}
    measurement, _ = await run_script(script, dataset=dataset)
    assert [record.is_ok for record in measurement.outcome.records] == [True, False]


async def test_an_interrupted_run_keeps_what_it_has_and_records_what_was_open() -> None:
    async with MockServer(Script(ttft_s=0.01, itl_s=0.005, fault=lambda n: "silent" if n > 3 else None)) as server:
        run = asyncio.create_task(run_on(server, arrival={"max_concurrency": 4}, dataset={"num_prompts": 30}))
        while len(server.served) < 8:
            await asyncio.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)
        measurement = await asyncio.wait_for(run, 10)
    assert measurement.outcome.is_interrupted
    assert sum(record.is_ok for record in measurement.outcome.records) == 4
    assert failures(measurement.outcome.records) == {"cancelled": 4}


async def test_an_unreachable_endpoint_is_a_clear_error() -> None:
    async with MockServer() as server:
        url = server.url
    with pytest.raises(EndpointError, match=rf"{url} cannot be reached: 127\.0\.0\.1:\d+: "):
        await run_on(_Gone(url))


class _Gone(MockServer):
    """Return the address of a stopped server."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url


async def test_a_warm_up_of_nothing_but_failures_is_a_clear_error() -> None:
    with pytest.raises(EndpointError, match="no warm-up request was answered; the first failed with http_5xx: 500"):
        await run_script(Script(fault=lambda _: "crash"), run={"num_warmups": 2})


async def test_an_endpoint_that_is_no_http_server_is_a_clear_error() -> None:
    server = await asyncio.start_server(_talk_smtp, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        with pytest.raises(EndpointError, match="with no HTTP"):
            await run_on(_Gone(f"http://{host}:{port}"))


async def _talk_smtp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n")
    await reader.read(100)
    writer.close()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _one_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers the first request of a connection, and closes it on the second."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        await reader.readuntil(b"\r\n\r\n")


async def _no_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def _fetch(handler: Handler, times: int) -> list[tuple[int, bytes]]:
    """Send requests one after the other and return their answers; all connections are closed at the end."""
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        await handler(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})
    try:
        return [await client.fetch("GET", "/") for _ in range(times)]
    finally:
        await client.close()
        server.close()
        await asyncio.gather(*[task for task in served if task is not None])


def test_an_idle_connection_that_the_server_gave_up_is_no_failure() -> None:
    assert asyncio.run(_fetch(_one_answer, 3)) == [(200, b"ok")] * 3


def test_a_new_connection_without_an_answer_is_a_failure() -> None:
    with pytest.raises(Disconnected):
        asyncio.run(_fetch(_no_answer, 1))
