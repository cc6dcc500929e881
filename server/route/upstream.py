"""One connection to a replica: HTTP/1.1 with one request at a time, and parts of answers as soon as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

MAX_UNREAD_BYTES = 2**18  # of an answer whose client reads slowly: then the replica waits
Header = tuple[bytes, bytes]


class Lost(Exception):
    """The connection has ended, or could not be made, before the answer was complete."""


class Upstream(asyncio.Protocol):
    """A connection; `ask`, then `read` until it returns b""."""

    def __init__(self, heard: Callable[[], None]) -> None:
        """`heard` is called whenever the replica sends something."""
        self._heard = heard
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._error = ""
        self.num_asked = 0
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.headers = 0, list[Header]()
        self._parts: list[bytes] = []
        self._num_unread = 0
        self._is_complete = self._is_headed = self._is_kept = self._is_paused = False
        self.taker: Callable[[bytes], bool] | None = None  # takes a part at once; returns False to leave it to `read`

    @property
    def is_reusable(self) -> bool:
        """Return whether another request may be sent."""
        if self._transport is None or self._error or self._transport.is_closing():
            return False
        return not self.num_asked or (self._is_complete and self._is_kept)

    def header(self, name: bytes) -> bytes:
        """Return a header of the answer by its lower-case name; b"" if it has none."""
        return next((value for key, value in self.headers if key == name), b"")

    async def ask(self, *request: bytes) -> None:
        """Send a request in parts and wait for the head of the answer. Raises Lost."""
        self._begin()
        self.num_asked += 1
        if self._transport is None or self._error:
            raise Lost(self._error or "the connection is closed")
        self._transport.writelines(request)
        while not self._is_headed:
            await self._wait()

    async def read(self) -> bytes:
        """Return the next bytes of the answer's body; b"" at its end. Raises Lost."""
        while not self._parts and not self._is_complete:
            await self._wait()
        data, self._parts, self._num_unread = b"".join(self._parts), [], 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def close(self, error: str = "") -> None:
        """End the connection. With `error` an unfinished answer counts as lost."""
        if self._transport is not None:
            self._error = self._error or error
            self._transport.abort()

    async def _wait(self) -> None:
        if self._error:
            raise Lost(self._error)
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        names = {name for name, _ in self.headers}
        if self._is_headed and not names & {b"content-length", b"transfer-encoding"} and exc is None:
            self._is_complete = True  # an answer of HTTP/1.0 ends with its connection
        self._error = self._error or (str(exc) if exc else "the replica has closed the connection")
        self._wake()

    def data_received(self, data: bytes) -> None:
        self._heard()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close(f"the answer is no HTTP: {error}")
        if self._parts or self._is_complete or self.taker is None:
            self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:  # such as 103, before the answer
            self.headers.clear()
        else:
            self._is_headed = True

    def on_body(self, body: bytes) -> None:
        if self.taker is not None and not self._parts and self.taker(body):
            return
        self._parts.append(body)
        self._num_unread += len(body)
        if self._num_unread > MAX_UNREAD_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self._is_complete = self._is_headed
        self._is_kept = bool(self._parser.should_keep_alive())  # which the parser forgets after this call
