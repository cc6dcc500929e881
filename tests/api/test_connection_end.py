"""A connection that has ended leaves nothing in the server."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from neuronserve.server.api.http.connection_end import (
    EndableProtocol,
    direct_writer,
    end_connection,
    without_direct_writer,
)

COUNT = 20
REQUEST = b"POST /%s HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Memory is freed by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """An answer that is whole, one that never ends by itself, or a connection that is ended, by the path."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"some", "more_body": True})
    if scope["path"] == "/endless":
        while (await receive())["type"] != "http.disconnect":
            pass
    elif scope["path"] != "/whole":
        end_connection(scope, scope["path"].removeprefix("/"))
        return
    await send({"type": "http.response.body"})


@pytest.mark.slow
@pytest.mark.parametrize("path", ["whole", "endless", "close", "reset"])
@pytest.mark.parametrize("is_pipelined", [False, True])
def test_nothing_is_kept_of_a_connection_that_has_ended(path: str, is_pipelined: bool, no_collections: None) -> None:
    kept: weakref.WeakSet[EndableProtocol] = weakref.WeakSet()

    async def serve() -> None:
        config, state = uvicorn.Config(answer, lifespan="off", log_config=None), ServerState()

        def protocol() -> EndableProtocol:
            made = EndableProtocol(config, state, {})
            kept.add(made)
            return made

        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        for _ in range(COUNT):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(REQUEST % path.encode() * (1 + is_pipelined))
            assert await reader.readuntil(b"some")
            writer.close()
        while state.connections or state.tasks:
            await asyncio.sleep(0)
        server.close()
        await server.wait_closed()

    uvloop.run(serve())
    assert len(kept) == 0


def test_parts_that_are_written_at_once_come_in_order_and_wait_for_a_slow_reader() -> None:
    parts = [b"%d " % i * 4096 for i in range(2000)]  # more than the sockets of both ends and the transport take
    refused: list[int] = []

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        writer = direct_writer(scope)
        assert writer is not None
        assert direct_writer(without_direct_writer(scope)) is None
        for number, part in enumerate(parts):
            if writer.is_ready():
                writer.write([part])
            else:
                refused.append(number)
                is_read.set()
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async def serve() -> bytes:
        config, state = uvicorn.Config(streaming, lifespan="off", log_config=None), ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: EndableProtocol(config, state, {}), "127.0.0.1", 0
        )
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET /stream HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
        await is_read.wait()  # nothing is read before a part was refused
        body = await reader.read()
        writer.close()
        server.close()
        await server.wait_closed()
        return body.split(b"\r\n\r\n", 1)[1]

    is_read = asyncio.Event()
    body = uvloop.run(serve())
    assert refused
    assert body == b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
