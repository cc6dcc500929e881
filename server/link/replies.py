"""Replies that an engine owes, in the order of the commands that asked for them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from server.errors import EngineDead

Reply = TypeVar("Reply")


class Replies(Generic[Reply]):
    """Of one kind. Used on one event loop."""

    def __init__(self) -> None:
        self._pending: deque[asyncio.Future[Reply] | None] = deque()

    def expect(self) -> asyncio.Future[Reply]:
        """The reply to a command that is sent next."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._pending.append(reply)
        return reply

    def ignore(self) -> None:
        """Nobody waits for the reply to the command that is sent next."""
        self._pending.append(None)

    def answer(self, output: Reply) -> None:
        """Give out the oldest; the caller may have been cancelled."""
        reply = self._pending.popleft()
        if reply is not None and not reply.done():
            reply.set_result(output)

    def fail(self, message: str) -> None:
        """None will come any more."""
        while self._pending:
            reply = self._pending.popleft()
            if reply is not None and not reply.done():
                reply.set_exception(EngineDead(message))
