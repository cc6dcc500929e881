"""What the process with the engines does and counts for all workers, by the names under which they ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from neuronserve.server.errors import RequestError
from neuronserve.server.link.hub import messages as m

# What a worker, by its number, has asked for. Raises RequestError. What need not be awaited is done in their order.
Offer = Callable[[int, bytes], bytes | Awaitable[bytes]]
Send = Callable[[m.Answered], None]


class Offers:
    """Used on one event loop."""

    def __init__(self) -> None:
        self._by_name: dict[str, Offer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, name: str, offer: Offer) -> None:
        """Answer what is asked by that name."""
        self._by_name[name] = offer

    def take_up(self, worker: int, ask: m.Ask, send: Send) -> None:
        """Do what a worker asks for, and answer it if it waits."""
        try:
            said = self._by_name[ask.name](worker, ask.body)
        except RequestError as error:
            answer(send, ask.number, error)
            return
        if isinstance(said, bytes):
            answer(send, ask.number, said)
            return
        task = asyncio.ensure_future(_answer_later(send, ask.number, said))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Let go of what is under way."""
        for task in self._tasks:
            task.cancel()


def answer(send: Send, number: int | None, said: bytes | RequestError = b"") -> None:
    """Answer a question of that number; None: nobody waits for it."""
    if number is not None:
        send(m.Answered(number, said) if isinstance(said, bytes) else m.Answered(number, raised=m.Raised.of(said)))


async def _answer_later(send: Send, number: int | None, said: Awaitable[bytes]) -> None:
    try:
        answer(send, number, await said)
    except RequestError as error:
        answer(send, number, error)
