"""HTTP server of one ASGI application: uvicorn without its signal handling and without sockets of its own.

Its protocol limits header bytes, counted as they arrive, and connections: httptools keeps an unfinished header of any
size in memory, and uvicorn's h11 limits have no effect with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application

from ...errors import HeadersTooLarge, InvalidRequest, RequestError, TooManyConnections
from ..config import MAX_HEADER_BYTES
from ..errors import RETRY_AFTER_S, error_bytes
from .connection_end import EndableProtocol
from .connections import Connections

# Idle time of a connection: longer than clients (httpx, so OpenAI's too: 5 s) and load balancers (AWS: 60 s) keep
# it, so that none sends a request into a connection that closes.
KEEP_ALIVE_S = 75
TICK_S = 1.0  # between two dates of answers; uvicorn's tenth of a second keeps an idle process busy
FLUSH_TIMEOUT_S = 5  # for complete answers that their clients have not read yet


class HttpServer(uvicorn.Server):
    """Serves the connections that `connections` accepts, until `end` is called."""

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        config = uvicorn.Config(
            cast(ASGI3Application, app),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # the access log is written where the answer is counted
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=FLUSH_TIMEOUT_S,
        )
        super().__init__(config)
        self._connections = connections
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Accept no more connections, and return from `serve` when open requests are answered."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ending.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        del sockets
        await super().startup(sockets=[])
        self._connections.open(self._protocol)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._connections.close()
        await super().shutdown(sockets)

    def _protocol(self, is_surplus: bool) -> LimitedHttpProtocol:
        return LimitedHttpProtocol(
            self._connections,
            is_surplus,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


SURPLUS_S = 5.0  # time for a refused connection to send its request


class LimitedHttpProtocol(EndableProtocol):
    """Answers 431 and closes as soon as request line and headers together pass `MAX_HEADER_BYTES`.

    A connection beyond the server's limit gets 429 for its first request, or is closed when none arrives.
    """

    def __init__(self, connections: Connections, is_surplus: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._all = connections
        self._is_surplus = is_surplus
        self._raw_bytes = 0  # received since the last request's end while headers are unfinished
        self._parsed_bytes = 0  # of the request line and the complete headers
        self._is_in_body = False
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._is_surplus:
            self.loop.call_later(SURPLUS_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._all.closed()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._raw_bytes += len(data)
        super().data_received(data)
        if self._is_in_body:
            self._raw_bytes = 0
        elif self._raw_bytes > MAX_HEADER_BYTES:
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        self._parsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_body = True
        if self._is_surplus:
            self._refuse(TooManyConnections(f"The server has {self._all.limit} connections open, as many as it can."))
        elif (error := self._malformed()) is not None:
            self._refuse(error)
        elif not self._is_refused:
            super().on_headers_complete()

    def _malformed(self) -> RequestError | None:
        """Return the error of a head that RFC 9112 requires to refuse, since proxies may read it differently."""
        is_old = self.parser.get_http_version() == "1.0"
        names = [name for name, _ in self.headers]
        if (count := names.count(b"host")) > 1 or not (count or is_old):
            return InvalidRequest(f"The request has {count} Host headers: it must have one.", "Host")
        if is_old and b"transfer-encoding" in names:
            return InvalidRequest("HTTP/1.0 has no Transfer-Encoding: send a Content-Length.", "Transfer-Encoding")
        return None

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._raw_bytes = 0
        if not self._is_refused:
            super().on_message_complete()

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > MAX_HEADER_BYTES:
            self._refuse(_too_large())

    def _refuse(self, error: RequestError) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        body = error_bytes(error)
        retry = f"retry-after: {RETRY_AFTER_S}\r\n" if error.status == HTTPStatus.TOO_MANY_REQUESTS else ""
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _too_large() -> RequestError:
    return HeadersTooLarge(f"Request line and headers are larger than the {MAX_HEADER_BYTES} bytes this server reads.")
