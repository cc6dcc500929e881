"""Server-sent event streams, and the cancelling of work when its client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.errors import as_request_error, error_bytes
from server.api.http.connection_end import direct_write

KEEP_ALIVE_S = 15.0  # longest silence before a comment is sent, so that proxies keep the connection
DONE = b"data: [DONE]\n\n"
T = TypeVar("T")


def frame(payload: bytes) -> bytes:
    """One event; `payload` is JSON and so has no line break."""
    return b"data: " + payload + b"\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects first; then raises ClientDisconnect."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        await _end(working, leaving)


class EventStream(Response):
    """Stream of frames. `first` is made before the status line, so that errors before it are plain HTTP errors."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None], end: bytes = DONE) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._end = end
        self._last_time = 0.0  # when something was sent last, on the event loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnect):
            await until_disconnect(receive, self._write(scope, send))

    async def _write(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._rest):
            await _chunk(send, self._first)
            try:
                await self._write_rest(scope, send)
            except Exception as error:
                await _chunk(send, frame(error_bytes(as_request_error(error))))
        await send({"type": "http.response.body", "body": self._end, "more_body": False})

    async def _write_rest(self, scope: Scope, send: Send) -> None:
        loop, write = asyncio.get_running_loop(), direct_write(scope)
        breaking = asyncio.ensure_future(self._break_silence(send))
        try:
            async for data in self._rest:
                self._last_time = loop.time()
                if not write(data):
                    await _chunk(send, data)
        finally:
            await _end(breaking)

    async def _break_silence(self, send: Send) -> None:
        """Send a comment whenever nothing was sent for `KEEP_ALIVE_S`; it never falls inside a frame."""
        loop = asyncio.get_running_loop()
        self._last_time = loop.time()
        while True:
            await asyncio.sleep(self._last_time + KEEP_ALIVE_S - loop.time())
            if loop.time() >= self._last_time + KEEP_ALIVE_S:
                self._last_time = loop.time()
                await _chunk(send, b": keep-alive\n\n")


async def _chunk(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs and wait until it has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
