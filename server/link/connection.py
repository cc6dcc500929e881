"""Messages to and from one engine's process, on an event loop: encoded, decoded, and its exit noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from neuronserve.server.link.handle import EngineHandle
from neuronserve.server.link.messages import Input, Output

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Output)


class Connection:
    """The socket of one life of an engine."""

    def __init__(self, engine: EngineHandle) -> None:
        self._engine, self._frames = engine, engine.frames

    def open(self, on_output: Callable[[], None], on_exit: Callable[[], None]) -> None:
        """Call `on_output` whenever there is something to read, and `on_exit` at the process's end."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._frames.fileno(), self._on_readable, on_output)
        if self._engine.process is not None:
            loop.add_reader(self._engine.process.sentinel, on_exit)

    def close(self) -> None:
        """Call nothing any more. May be called twice."""
        loop = asyncio.get_running_loop()
        if not self._frames.is_closed:
            loop.remove_reader(self._frames.fileno())
            loop.remove_writer(self._frames.fileno())
        if self._engine.process is not None:
            loop.remove_reader(self._engine.process.sentinel)

    def send(self, command: Input) -> bool:
        """False when nobody will read it."""
        is_read = self._frames.send(_ENCODER.encode(command))
        if self._frames.has_unsent:
            asyncio.get_running_loop().add_writer(self._frames.fileno(), self._on_writable)
        return is_read

    def read(self) -> Iterator[Output]:
        """All messages that have come."""
        for data in self._frames.read():
            yield _DECODER.decode(data)

    def _on_readable(self, on_output: Callable[[], None]) -> None:
        on_output()
        if self._frames.has_ended and not self._frames.is_closed:  # or it would be called for ever
            asyncio.get_running_loop().remove_reader(self._frames.fileno())

    def _on_writable(self) -> None:
        if not (self._frames.flush() and self._frames.has_unsent):
            asyncio.get_running_loop().remove_writer(self._frames.fileno())
