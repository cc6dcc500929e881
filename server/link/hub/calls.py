"""Questions to the workers of a hub, and what each says to them in time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Protocol

from neuronserve.server.link.hub import messages as m

ANSWER_TIMEOUT_S = 1.0  # of a worker that is asked something; a stopped one holds nobody up for longer


class Asked(Protocol):
    """A worker's session."""

    number: int

    def send(self, message: m.ToWorker) -> None:
        """Send a message."""


class Calls:
    """Used on one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._answers: dict[tuple[int, int], asyncio.Future[bytes]] = {}  # by worker and number of the call

    async def ask(self, asked: Iterable[Asked], name: str, body: bytes, is_for_one: bool = False) -> dict[int, bytes]:
        """What workers say to a call, by number, without those that say nothing in time.

        A call that `is_for_one` ends when a worker has said something: one that stands still holds nobody up then.
        """
        call, answers = next(self._numbers), dict[int, asyncio.Future[bytes]]()
        for worker in asked:
            answers[worker.number] = self._answers[worker.number, call] = asyncio.get_running_loop().create_future()
            worker.send(m.Called(call, name, body))
        try:
            await _awaited(set(answers.values()), is_for_one)
        finally:
            for number in answers:
                del self._answers[number, call]
        return {number: answer.result() for number, answer in answers.items() if _has_come(answer)}

    def take(self, worker: int, reply: m.Reply) -> None:
        """Note what a worker says; nobody may wait for it any more."""
        awaited = self._answers.get((worker, reply.number))
        if awaited is not None and not awaited.done():
            awaited.set_result(reply.body)

    def ended(self, worker: int) -> None:
        """A worker has ended: it will say nothing."""
        for (number, _), awaited in self._answers.items():
            if number == worker:
                awaited.cancel()


async def _awaited(waiting: set[asyncio.Future[bytes]], is_for_one: bool) -> None:
    """Wait until all have come, or one that is not empty is enough, or it takes too long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ANSWER_TIMEOUT_S
    when = asyncio.FIRST_COMPLETED if is_for_one else asyncio.ALL_COMPLETED
    while waiting and (left_s := deadline - loop.time()) > 0:
        done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=when)
        if is_for_one and any(_has_come(answer) and answer.result() for answer in done):
            return


def _has_come(answer: asyncio.Future[bytes]) -> bool:
    """Whether a worker has answered: it has had time, and lives."""
    return answer.done() and not answer.cancelled()
