"""Replies that an engine owes, of each kind in the order of the commands that asked for them."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import Any, TypeVar

from neuronserve.server.errors import EngineDead

Reply = TypeVar("Reply")


class Replies:
    """By their types. Used on one event loop."""

    def __init__(self) -> None:
        self._pending: defaultdict[type, deque[asyncio.Future[Any] | None]] = defaultdict(deque)

    def expect(self, kind: type[Reply]) -> asyncio.Future[Reply]:
        """The reply to a command that is sent next."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending[kind].append(reply)
        return reply

    def ignore(self, kind: type) -> None:
        """Nobody waits for the reply to the command that is sent next."""
        self._pending[kind].append(None)

    def answer(self, output: object) -> None:
        """Give out the oldest of its kind; the caller may have been cancelled."""
        reply = self._pending[type(output)].popleft()
        if reply is not None and not reply.done():
            reply.set_result(output)

    def fail(self, message: str) -> None:
        """None will come any more."""
        for pending in self._pending.values():
            while pending:
                reply = pending.popleft()
                if reply is not None and not reply.done():
                    reply.set_exception(EngineDead(message))
