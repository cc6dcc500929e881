"""Questions between the hub and its workers: calls go to workers, offers answer questions of workers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from ...errors import RequestError
from . import messages as m

ANSWER_TIMEOUT_S = 1.0  # for a worker's answer: a worker that was stopped delays nobody longer
# Answers a question of a worker, given by its number. Raises RequestError. Offers that need not be awaited are answered
# in the order of their questions.
Offer = Callable[[int, bytes], bytes | Awaitable[bytes]]
Send = Callable[[m.Answered], None]


class Worker(Protocol):
    """A worker's session."""

    number: int

    def send(self, message: m.ToWorker) -> None:
        """Send a message."""


class Calls:
    """Questions to workers. Used on one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._answers: dict[tuple[int, int], asyncio.Future[bytes]] = {}  # by worker and number of the call

    async def ask(
        self, workers: Iterable[Worker], name: str, body: bytes, is_for_one: bool = False
    ) -> dict[int, bytes]:
        """Return the answers of workers to a call, by worker, without those that do not answer in time.

        A call that `is_for_one` ends with the first answer that is not empty.
        """
        call, answers = next(self._numbers), dict[int, asyncio.Future[bytes]]()
        for worker in workers:
            answers[worker.number] = self._answers[worker.number, call] = asyncio.get_running_loop().create_future()
            worker.send(m.Called(call, name, body))
        try:
            await _wait(set(answers.values()), is_for_one)
        finally:
            for number in answers:
                del self._answers[number, call]
        return {number: answer.result() for number, answer in answers.items() if _has_come(answer)}

    def take(self, worker: int, reply: m.Reply) -> None:
        """Record a worker's answer; a late one is dropped."""
        awaited = self._answers.get((worker, reply.number))
        if awaited is not None and not awaited.done():
            awaited.set_result(reply.body)

    def ended(self, worker: int) -> None:
        """Stop waiting for a worker that has ended."""
        for (number, _), awaited in self._answers.items():
            if number == worker:
                awaited.cancel()


async def _wait(waiting: set[asyncio.Future[bytes]], is_for_one: bool) -> None:
    """Wait until all have answered, until one answer that is not empty is enough, or until the timeout."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ANSWER_TIMEOUT_S
    when = asyncio.FIRST_COMPLETED if is_for_one else asyncio.ALL_COMPLETED
    while waiting and (left_s := deadline - loop.time()) > 0:
        done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=when)
        if is_for_one and any(_has_come(answer) and answer.result() for answer in done):
            return


def _has_come(answer: asyncio.Future[bytes]) -> bool:
    """Return whether a worker has answered: it had time, and lives."""
    return answer.done() and not answer.cancelled()


class Offers:
    """Answers of the process that has the engines, by name. Used on one event loop."""

    def __init__(self) -> None:
        self._by_name: dict[str, Offer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, name: str, offer: Offer) -> None:
        """Answer questions of that name."""
        self._by_name[name] = offer

    def take(self, worker: int, ask: m.Ask, send: Send) -> None:
        """Answer a worker's question."""
        try:
            result = self._by_name[ask.name](worker, ask.body)
        except RequestError as error:
            answer(send, ask.number, error)
            return
        if isinstance(result, bytes):
            answer(send, ask.number, result)
            return
        task = asyncio.ensure_future(_answer_later(send, ask.number, result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel pending answers."""
        for task in self._tasks:
            task.cancel()


def answer(send: Send, number: int | None, result: bytes | RequestError = b"") -> None:
    """Answer the question of that number; None: nobody waits for the answer."""
    if number is not None:
        send(
            m.Answered(number, result) if isinstance(result, bytes) else m.Answered(number, raised=m.Raised.of(result))
        )


async def _answer_later(send: Send, number: int | None, result: Awaitable[bytes]) -> None:
    try:
        answer(send, number, await result)
    except RequestError as error:
        answer(send, number, error)
