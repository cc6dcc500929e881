"""Server-sent event streams, and cancellation of work when its client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...errors import RequestError
from ..errors import as_request_error, error_bytes, ollama_error_bytes
from .connection_end import Writer, direct_writer
from .resume import HEADER

KEEP_ALIVE_S = 15.0  # longest silence before a comment is sent, so that proxies keep the connection
EVENT_END = b"\n\n"
DONE = b"data: [DONE]\n\n"
T = TypeVar("T")


def frame(payload: bytes) -> bytes:
    """Return one event; `payload` is JSON and so has no line break."""
    return b"data: " + payload + b"\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. When the client disconnects first, cancel it and raise ClientDisconnect."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        await _end(working, leaving)


class ShortWay:
    """Direct way to a stream's client, for frames that arrive while the stream's coroutine waits for the next ones."""

    def __init__(self) -> None:
        self._writer: Writer | None = None  # set while frames written to it follow those sent before
        self._held: list[bytes] = []
        self.last_time = 0.0  # of the last frame, on the event loop's clock

    @property
    def is_open(self) -> bool:
        """Return whether frames may be written now; otherwise the coroutine must send them."""
        return bool(self._held) or (self._writer is not None and self._writer.is_ready())

    def open(self, writer: Writer | None) -> None:
        """Lead to a client that has the head of its answer; None closes the way."""
        self.flush()
        self._writer = writer

    def write(self, frames: Iterable[bytes]) -> None:
        """Send frames, each as a part of its own, behind those that are held. The way must be open."""
        self._held += frames
        self.flush()

    def write_soon(self, frames: list[bytes]) -> None:
        """Send frames in one write with those of other steps that have arrived too. The way must be open."""
        if frames and not self._held:
            asyncio.get_running_loop().call_soon(self.flush)
        self._held += frames

    def flush(self) -> None:
        """Send the frames that are held."""
        if self._held and self._writer is not None:
            parts, self._held = self._held, []
            self.last_time = asyncio.get_running_loop().time()
            self._writer.write(parts)


class Continued(Protocol):
    """Part of a journal (server/api/pipeline/journal.py) that a stream must know."""

    is_wanted: bool
    fingerprint: str
    num_events_seen: int


class EventStream(Response):
    """Stream of frames. The first is made before the status line, so that earlier errors are plain HTTP errors.

    All preparations happen while the first frame is made. `way` opens after the first frame was sent, for the producer
    of the frames.
    """

    media_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"  # sent in silence; b"" = nothing is

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        end: bytes = DONE,
        way: ShortWay | None = None,
        journal: Continued | None = None,
    ) -> None:
        """`journal`: of an answer that may be continued elsewhere, or whose first events the client has."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        if journal is not None and journal.is_wanted:
            self.headers[HEADER.decode()] = journal.fingerprint
        self._num_seen = 0 if journal is None else journal.num_events_seen
        self._frames = self._unseen(frames)
        self._end = end
        self._way = way or ShortWay()
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises the error that replaces the first frame, or ClientDisconnect when the client leaves before it."""
        try:
            await until_disconnect(receive, self._write(scope, send))
        except ClientDisconnect:
            if not self._has_begun:
                raise

    async def _write(self, scope: Scope, send: Send) -> None:
        async with contextlib.aclosing(self._frames):
            first = await anext(self._frames, b"")
            self._has_begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if first:
                await _chunk(send, first)
            try:
                await self._write_rest(scope, send)
            except Exception as error:
                await _chunk(send, self.error_frame(as_request_error(error)))
        await send({"type": "http.response.body", "body": self._without_seen(self._end), "more_body": False})

    def error_frame(self, error: RequestError) -> bytes:
        """Return what ends a stream that has failed."""
        return frame(error_bytes(error))

    async def _unseen(self, frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield the frames without the events that the client has from another replica."""
        async with contextlib.aclosing(frames):
            async for data in frames:
                if rest := self._without_seen(data) if self._num_seen else data:
                    yield rest

    def _without_seen(self, data: bytes) -> bytes:
        events = data.split(EVENT_END)[:-1]
        num_seen = min(self._num_seen, len(events))
        self._num_seen -= num_seen
        return b"".join([event + EVENT_END for event in events[num_seen:]])

    async def _write_rest(self, scope: Scope, send: Send) -> None:
        way, loop = self._way, asyncio.get_running_loop()
        way.open(direct_writer(scope))
        way.last_time = loop.time()
        breaking: list[asyncio.Task[None]] = []  # begun only when needed, as most streams are over before
        timer = loop.call_later(KEEP_ALIVE_S, lambda: breaking.append(loop.create_task(self._break_silence(send))))
        try:
            async for data in self._frames:
                if way.is_open:
                    way.write([data])
                else:
                    way.flush()
                    way.last_time = loop.time()
                    await _chunk(send, data)
        finally:
            way.open(None)
            timer.cancel()
            if breaking:
                await _end(*breaking)

    async def _break_silence(self, send: Send) -> None:
        """Send a comment whenever nothing was sent for `KEEP_ALIVE_S`, never inside a frame."""
        loop, way = asyncio.get_running_loop(), self._way
        while self.keep_alive:
            await asyncio.sleep(way.last_time + KEEP_ALIVE_S - loop.time())
            if loop.time() >= way.last_time + KEEP_ALIVE_S:
                way.last_time = loop.time()
                await _chunk(send, self.keep_alive)


class LineStream(EventStream):
    """Stream of JSON objects, one a line, as Ollama's clients read it."""

    media_type = "application/x-ndjson"
    keep_alive = b""

    def error_frame(self, error: RequestError) -> bytes:
        return ollama_error_bytes(error) + b"\n"


async def _chunk(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel running tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
