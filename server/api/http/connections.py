"""Limit of open connections. A connection beyond the limit gets an error instead of a reset.

Connections are accepted here and not by the event loop's server, which cannot pause: at the limit of open files it
would accept and reset. While as many connections as possible are being refused, others wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from functools import partial

from .tls import HANDSHAKE_TIMEOUT_S, Tls

log = logging.getLogger("neuronserve")
LOG_INTERVAL_S = 10.0
MAX_ACCEPTS = 64  # in one turn of the event loop


class Connections:
    """Connections of one listening socket: at most `limit` are served and `spare` are being refused."""

    def __init__(
        self, listener: socket.socket, limit: int, spare: int, count_refusal: Callable[[], None], tls: Tls | None = None
    ) -> None:
        """`tls`: a connection gets its protocol after the handshake."""
        self.limit = limit
        self._most = limit + spare
        self._listener = listener
        self._count_refusal = count_refusal
        self._tls = tls
        self._num_open = 0
        self._num_unlogged, self._logged_s = 0, -LOG_INTERVAL_S
        self._make: Callable[[bool], asyncio.Protocol] | None = None  # None while nothing is accepted
        self._is_reading = False
        self._connecting: set[asyncio.Task[None]] = set()

    def open(self, make_protocol: Callable[[bool], asyncio.Protocol]) -> None:
        """Accept from now on. `make_protocol` gets whether the connection is beyond the limit.

        The protocol calls `closed` at its end.
        """
        self._make = make_protocol
        self._read()

    def close(self) -> None:
        """Accept nothing more. Open connections stay open."""
        self._make = None
        self._pause()

    def _refuse(self) -> None:
        self._count_refusal()
        self._num_unlogged += 1
        now = time.monotonic()
        if now - self._logged_s >= LOG_INTERVAL_S:
            line = "%d connections refused: %d are open, which is what the limit of open files (ulimit -n) leaves"
            log.warning(line, self._num_unlogged, self.limit)
            self._num_unlogged, self._logged_s = 0, now

    def closed(self) -> None:
        """Note the end of a connection, so that another can be accepted."""
        self._num_open -= 1
        self._read()

    def _read(self) -> None:
        if self._make is not None and not self._is_reading and self._num_open < self._most:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)
            self._is_reading = True

    def _pause(self) -> None:
        if self._is_reading:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._is_reading = False

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            if self._num_open >= self._most:
                self._pause()
                return
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # no connection is pending, or the client has left
                return
            self._num_open += 1
            if is_surplus := self._num_open > self.limit:
                self._refuse()
            task = asyncio.ensure_future(self._connect(accepted, is_surplus))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket, is_surplus: bool) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert self._make is not None
            make, loop = partial(self._make, is_surplus), asyncio.get_running_loop()
            if self._tls is None:
                await loop.connect_accepted_socket(make, accepted)
            else:
                context, limit_s = self._tls.context, HANDSHAKE_TIMEOUT_S
                await loop.connect_accepted_socket(make, accepted, ssl=context, ssl_handshake_timeout=limit_s)
        except OSError:  # the client has left, or speaks no TLS
            accepted.close()
            self.closed()
