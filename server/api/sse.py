"""Answers that end early when the client goes away: a server-sent event stream, and any other awaited work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.api.errors import as_request_error, error_bytes

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
    """A stream of frames. `first` was awaited before the status line, so early errors are plain HTTP errors."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        with contextlib.suppress(ClientDisconnect):
            await until_disconnect(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._rest):
            await _chunk(send, self._first)
            try:
                await self._write_rest(send)
            except Exception as error:
                await _chunk(send, frame(error_bytes(as_request_error(error))))
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _write_rest(self, send: Send) -> None:
        waiting: asyncio.Future[bytes | None] = asyncio.ensure_future(_next(self._rest))
        try:
            while True:
                done, _ = await asyncio.wait({waiting}, timeout=KEEP_ALIVE_S)
                if not done:
                    await _chunk(send, b": keep-alive\n\n")
                    continue
                if (data := waiting.result()) is None:
                    return
                await _chunk(send, data)
                waiting = asyncio.ensure_future(_next(self._rest))
        finally:
            await _end(waiting)


async def _next(frames: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(frames, None)


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
