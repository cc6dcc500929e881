"""A client that leaves takes its request out of the engine in any state, streaming or not."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from neuronserve.server.api.config import ApiConfig
from neuronserve.server.api.keys.file import NO_KEY
from neuronserve.server.api.keys.use import KeyUse
from neuronserve.server.api.listener import bind
from neuronserve.server.api.server import ApiServer
from neuronserve.server.link.client import EngineClient
from neuronserve.server.link.groups import EngineGroups
from neuronserve.server.link.handle import EngineHandle
from tests.api.serving import PATIENCE_S, run_fake
from tests.link.test_client import config, until

STEP_S = 0.02
LONG = {"max_tokens": 400, "ignore_eos": True}
BUSY = {**LONG, "prompt": "b"}  # one decoding sequence
PREFILLING = {"prompt": "p" * 480, "max_tokens": 2}  # 120 steps of 4 tokens


@pytest_asyncio.fixture
async def server(checkpoint: Path) -> AsyncIterator[ApiServer]:
    """An engine in this event loop, whose counts can be watched; two sequences run at once, 5 tokens a step."""
    engine = EngineHandle(config(f"slow:{STEP_S}", max_num_seqs=2, max_num_batched_tokens=5), run_fake)
    api_config = ApiConfig(("fake",), checkpoint, checkpoint, shutdown_timeout_s=0)
    api = ApiServer(api_config, EngineGroups([engine]), bind("127.0.0.1", 0))
    running = asyncio.create_task(api.run())
    await until(lambda: api.service.phase == "ready")
    yield api
    api.shutdown()
    await asyncio.wait_for(running, PATIENCE_S)


async def connect(server: ApiServer, body: dict[str, object]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send one completions request over a socket of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server._listener.getsockname()[1])
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


def engine_of(server: ApiServer) -> EngineClient:
    """The one engine of the server."""
    (client,) = server.service.engine.clients
    return client


def state(client: EngineClient) -> tuple[int, int]:
    """(running, waiting) as the engine last said."""
    return (client.report.num_running, client.report.num_waiting) if client.report is not None else (0, 0)


def is_at(server: ApiServer, running: int, waiting: int) -> Callable[[], bool]:
    return lambda: state(engine_of(server)) == (running, waiting)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_in_decode(server: ApiServer, is_stream: bool) -> None:
    reader, writer = await connect(server, {**BUSY, "stream": is_stream})
    await until(lambda: state(engine_of(server)) == (1, 0) and engine_of(server).report is not None)
    if is_stream:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await until(is_at(server, 0, 0))
    assert server.service.engine.num_open == 0


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_in_prefill(server: ApiServer, is_stream: bool) -> None:
    _, writer = await connect(server, {**PREFILLING, "stream": is_stream})
    await until(lambda: state(engine_of(server)) == (1, 0))
    report = engine_of(server).report
    assert report is not None
    assert report.num_decode_tokens == 0
    writer.close()
    await until(is_at(server, 0, 0))
    last = engine_of(server).report
    assert last is not None
    assert last.step_id < 90  # the prompt alone would have taken 96 steps


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_in_the_queue(server: ApiServer, is_stream: bool) -> None:
    busy = [(await connect(server, BUSY))[1] for _ in range(2)]
    await until(is_at(server, 2, 0))
    _, waiting = await connect(server, {**BUSY, "stream": is_stream})
    await until(is_at(server, 2, 1))
    waiting.close()
    await until(is_at(server, 2, 0))
    for writer in busy:
        writer.close()
    await until(is_at(server, 0, 0))


async def test_all_choices_of_a_request_go(server: ApiServer) -> None:
    _, writer = await connect(server, {**LONG, "prompt": ["a", "b"], "n": 2})
    await until(is_at(server, 2, 2))
    writer.close()
    await until(is_at(server, 0, 0))
    assert server.service.engine.num_open == 0


async def test_a_reader_that_stops_reading_holds_up_nobody(server: ApiServer) -> None:
    _, slow = await connect(server, {**BUSY, "stream": True})
    reader, quick = await connect(server, {"prompt": "q", "max_tokens": 3, "ignore_eos": True})
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    assert answer.startswith(b"HTTP/1.1 200")
    for writer in (slow, quick):
        writer.close()
    await until(is_at(server, 0, 0))


async def test_a_request_of_a_client_that_has_left_is_not_begun(server: ApiServer) -> None:
    data = json.dumps(LONG | {"prompt": "a"}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    for is_reset in (True, False) * 20:  # all before the event loop runs again
        leaving = socket.create_connection(server._listener.getsockname()[:2])
        leaving.sendall(head.encode() + data)
        if is_reset:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        leaving.close()
    reader, writer = await connect(server, {"prompt": "b", "max_tokens": 1})
    assert b"200 OK" in await reader.readline()
    writer.close()
    use = server.service.accounts.of(NO_KEY)
    assert isinstance(use, KeyUse)
    assert use.totals.requests == 1
