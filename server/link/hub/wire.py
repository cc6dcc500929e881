"""Framed messages over one end of a socket pair, on an event loop. EOF means that the other process has ended."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

from .messages import ToHub, ToWorker

_ENCODER = msgspec.msgpack.Encoder()
_LENGTH_BYTES = 4
In = TypeVar("In")
TO_HUB: msgspec.msgpack.Decoder[ToHub] = msgspec.msgpack.Decoder(ToHub)
TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


class Wire(asyncio.Protocol, Generic[In]):
    """One end of the pair. Messages arrive in the order of sending, also those of a process that has died since."""

    def __init__(
        self, decoder: msgspec.msgpack.Decoder[In], on_message: Callable[[In], None], on_end: Callable[[], None]
    ) -> None:
        self._decoder, self._on_message, self._on_end = decoder, on_message, on_end
        self._transport: asyncio.Transport | None = None
        self._pending = bytearray()

    async def open(self, end: socket.socket) -> None:
        """Read and write `end`, which this wire owns from now on."""
        end.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    @property
    def num_unsent_bytes(self) -> int:
        """Number of bytes that the other process has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: ToHub | ToWorker) -> None:
        """Send a message; it is lost when the other process has ended, which `on_end` reports."""
        if self._transport is not None and not self._transport.is_closing():
            data = _ENCODER.encode(message)
            self._transport.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def close(self) -> None:
        """Send written messages and stop the callbacks. May be called twice."""
        self._on_end = _ignore
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        self._pending += data
        begin = 0
        while (end := begin + _LENGTH_BYTES) <= len(self._pending):
            length = int.from_bytes(self._pending[begin:end], "big")
            if end + length > len(self._pending):
                break
            message = self._pending[end : end + length]
            begin = end + length
            self._on_message(self._decoder.decode(message))
        del self._pending[:begin]

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._on_end()


def _ignore() -> None:
    """Do nothing: the wire is closed."""
