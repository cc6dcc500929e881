"""Messages to and from one engine process, on an event loop: encoded, decoded, and replies matched to commands."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from ..errors import EngineDead
from .handle import EngineHandle
from .messages import Input, Output

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Output)
Reply = TypeVar("Reply")


class Connection:
    """The socket of one life of an engine, and the replies that this life owes."""

    def __init__(self, engine: EngineHandle) -> None:
        self._engine, self._frames = engine, engine.frames
        # By the type of the reply, in the order of the commands; None: nobody waits for it.
        self._replies: defaultdict[type, deque[asyncio.Future[Any] | None]] = defaultdict(deque)

    def open(self, on_output: Callable[[], None], on_exit: Callable[[], None]) -> None:
        """Call `on_output` whenever there is something to read, and `on_exit` when the process ends."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._frames.fileno(), self._on_readable, on_output)
        if self._engine.process is not None:
            loop.add_reader(self._engine.process.sentinel, on_exit)

    def close(self, reason: str) -> None:
        """Stop the callbacks and fail the pending replies with EngineDead. May be called twice."""
        loop = asyncio.get_running_loop()
        if not self._frames.is_closed:
            loop.remove_reader(self._frames.fileno())
            loop.remove_writer(self._frames.fileno())
        if self._engine.process is not None:
            loop.remove_reader(self._engine.process.sentinel)
        for replies in self._replies.values():
            while replies:
                reply = replies.popleft()
                if reply is not None and not reply.done():
                    reply.set_exception(EngineDead(reason))

    def send(self, command: Input) -> bool:
        """Send a command. Returns False when the engine no longer reads."""
        is_read = self._frames.send(_ENCODER.encode(command))
        if self._frames.has_unsent:
            asyncio.get_running_loop().add_writer(self._frames.fileno(), self._on_writable)
        return is_read

    def read(self) -> Iterator[Output]:
        """All messages that have arrived."""
        for data in self._frames.read():
            yield _DECODER.decode(data)

    def expect(self, kind: type[Reply]) -> asyncio.Future[Reply]:
        """Return the reply of this type to the command that is sent next."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[kind].append(reply)
        return reply

    def ignore(self, kind: type) -> None:
        """Drop the reply of this type to the command that is sent next."""
        self._replies[kind].append(None)

    def resolve(self, output: object) -> None:
        """Give a reply to the oldest command that waits for its type; the caller may have been cancelled."""
        reply = self._replies[type(output)].popleft()
        if reply is not None and not reply.done():
            reply.set_result(output)

    def _on_readable(self, on_output: Callable[[], None]) -> None:
        on_output()
        if self._frames.has_ended and not self._frames.is_closed:  # otherwise the loop would call this forever
            asyncio.get_running_loop().remove_reader(self._frames.fileno())

    def _on_writable(self) -> None:
        if not (self._frames.flush() and self._frames.has_unsent):
            asyncio.get_running_loop().remove_writer(self._frames.fileno())
