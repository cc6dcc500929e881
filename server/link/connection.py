"""Messages to and from one engine's process, on an event loop: encoded, decoded, and its exit noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import msgspec
import zmq

from server.link.handle import EngineHandle
from server.link.messages import Input, Output

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Output)


class Connection:
    """The sockets of one life of an engine."""

    def __init__(self, engine: EngineHandle) -> None:
        self._engine = engine

    def open(self, on_output: Callable[[], None], on_exit: Callable[[], None]) -> None:
        """Call `on_output` whenever there is something to read, and `on_exit` at the process's end."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._engine.outputs.fileno(), self._on_readable, on_output)
        if self._engine.process is not None:
            loop.add_reader(self._engine.process.sentinel, on_exit)

    def close(self) -> None:
        """Call nothing any more. May be called twice."""
        loop = asyncio.get_running_loop()
        if not self._engine.outputs.is_closed:
            loop.remove_reader(self._engine.outputs.fileno())
        if self._engine.process is not None:
            loop.remove_reader(self._engine.process.sentinel)

    def send(self, command: Input) -> bool:
        """False when nobody is connected."""
        try:
            self._engine.commands.send(_ENCODER.encode(command), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def read(self) -> Iterator[Output]:
        """All messages that have come."""
        for data in self._engine.outputs.read():
            yield _DECODER.decode(data)

    def _on_readable(self, on_output: Callable[[], None]) -> None:
        on_output()
        if self._engine.outputs.has_ended and not self._engine.outputs.is_closed:  # or it would be called for ever
            asyncio.get_running_loop().remove_reader(self._engine.outputs.fileno())
