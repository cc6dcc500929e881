"""A lean HTTP/1.1 client for streamed responses: asyncio protocols over httptools, kept-alive connections, no limits.

It never waits for a free connection and never retries, as an open-loop generator must not. But if the server closes an
idle connection without a byte of an answer, the message is sent again on a new one (RFC 9112, section 9.3.1).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools

from .errors import SpecError

IDLE_LIMIT_S = 3.0  # such servers close idle connections after 5 s; a race with that would lose requests


class ConnectFailed(Exception):
    """No connection could be made."""


class Disconnected(Exception):
    """The server closed the connection in the middle of a response."""


class MalformedHttp(Exception):
    """The bytes of the response are not HTTP."""


class Exchange:
    """A response while it is received. Subclasses take its body; an exception of `on_body` ends the exchange."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.content_type = ""
        self.ends_at_close = True  # neither a length nor chunks mark the end of the body

    def on_body(self, chunk: bytes, now: float) -> None:
        """Take a chunk of the body, read at `now` (time.monotonic, seconds)."""
        raise NotImplementedError

    def begin_again(self) -> None:
        """Reset after a connection that ended without a byte of a response."""
        self.done = asyncio.get_running_loop().create_future()

    def end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class _Whole(Exchange):
    """Keeps the whole body."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[bytes] = []

    def on_body(self, chunk: bytes, now: float) -> None:
        del now
        self.chunks.append(chunk)


class Connection(asyncio.Protocol):
    """A TCP or TLS connection; one exchange at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.is_usable = True
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._now = 0.0

    def send(self, data: bytes, exchange: Exchange) -> None:
        """Start an exchange; `exchange.done` is set at its end."""
        assert self._transport is not None
        self._exchange = exchange
        self._transport.write(data)

    def close(self) -> None:
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic()
        try:
            self._parser.feed_data(data)
        except Exception as error:  # httptools wraps what a callback raises
            cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self._end(cause if isinstance(cause, Exception) else MalformedHttp(f"not an HTTP/1.1 answer: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_usable = False
        if exc is None and self._exchange is not None and self._exchange.status and self._exchange.ends_at_close:
            self._end(None)
        reason = str(exc) if exc else "the server closed the connection before the answer was complete"
        self._end(Disconnected(reason))

    # httptools' side

    def on_message_begin(self) -> None:
        if self._exchange is None:
            self.is_usable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is None:
            return
        name = name.lower()
        if name == b"content-type":
            self._exchange.content_type = value.decode("latin-1").lower()
        elif name in {b"content-length", b"transfer-encoding"}:
            self._exchange.ends_at_close = False

    def on_headers_complete(self) -> None:
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None:
            self._exchange.on_body(body, self._now)

    def on_message_complete(self) -> None:
        self.is_usable = self.is_usable and self._parser.should_keep_alive()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end(error)


class HttpClient:
    """Connections to one server, the most recently used first."""

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        self._url = split_url(base_url)
        self._tls = ssl.create_default_context() if self._url.scheme == "https" else None
        self._port = self._url.port or (443 if self._tls else 80)
        self._head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    def message(self, method: str, path: str, body: bytes, headers: str = "") -> bytes:
        """Return a request as bytes. `path` is below the base URL; `headers` are whole lines."""
        host = self._url.netloc.rpartition("@")[2]
        return (
            f"{method} {self._url.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {host}\r\n{self._head}{headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1") + body

    def _take_idle(self) -> Connection | None:
        """Return an idle connection that seems open, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and time.monotonic() - connection.idle_since < IDLE_LIMIT_S:
                return connection
            self._discard(connection)
        return None

    async def _connect(self) -> Connection:
        """Return a new connection. Raises ConnectFailed."""
        loop = asyncio.get_running_loop()
        host = self._url.hostname or ""
        try:
            _, connection = await loop.create_connection(Connection, host, self._port, ssl=self._tls)
        except OSError as error:
            raise ConnectFailed(f"{host}:{self._port}: {error.strerror or error}") from error
        self._open.add(connection)
        return connection

    def _release(self, connection: Connection) -> None:
        """Take back a connection after a successful exchange."""
        if connection.is_usable:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            self._discard(connection)

    def _discard(self, connection: Connection) -> None:
        """Close a connection that must not be used again."""
        connection.close()
        self._open.discard(connection)

    async def run(self, message: bytes, exchange: Exchange) -> None:
        """Send a message and wait for the end of its response. Raises ConnectFailed, Disconnected, MalformedHttp."""
        idle = self._take_idle()
        if idle is not None:
            try:
                await self._exchange(idle, message, exchange)
            except Disconnected:
                if exchange.status:
                    raise
                exchange.begin_again()
            else:
                return
        await self._exchange(await self._connect(), message, exchange)

    async def _exchange(self, connection: Connection, message: bytes, exchange: Exchange) -> None:
        try:
            connection.send(message, exchange)
            await exchange.done
        except BaseException:
            self._discard(connection)
            raise
        self._release(connection)

    async def fetch(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and body of a whole response. Raises the errors of `run`."""
        exchange = _Whole()
        await self.run(self.message(method, path, body), exchange)
        return exchange.status, b"".join(exchange.chunks)

    async def close(self) -> None:
        for connection in list(self._open):
            self._discard(connection)
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports close their sockets


def split_url(url: str) -> SplitResult:
    """Return the parts of an http or https URL. Raises SpecError."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise SpecError(f"base_url is {url!r}: it must look like http://HOST:PORT")
    return parts
