"""HTTP server of one ASGI application: uvicorn without its signal handling and without sockets of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application

from .connections import Connections
from .header_limit import LimitedHttpProtocol

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
