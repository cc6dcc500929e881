"""Threads that clients share in turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from neuronserve.server.text.fair_threads import FairThreads, is_large, owner
from tests.api.serving import PATIENCE_S, until


def submitted(threads: FairThreads, name: str, work: Callable[[], str]) -> Future[str]:
    token = owner.set(name)
    try:
        return threads.submit(work)
    finally:
        owner.reset(token)


def test_one_client_never_has_more_threads_than_its_share() -> None:
    threads, gate, running, most = FairThreads("test", 3, 2), threading.Event(), list[int](), list[int]()

    def work() -> str:
        running.append(1)
        most.append(len(running))
        gate.wait(PATIENCE_S)
        running.pop()
        return "done"

    held = [submitted(threads, "loud", work) for _ in range(8)]
    until(lambda: len(running) == 2)
    assert submitted(threads, "quiet", lambda: "at once").result(PATIENCE_S) == "at once"
    gate.set()
    assert [each.result(PATIENCE_S) for each in held] == ["done"] * 8
    assert max(most) == 2
    threads.close()


def test_clients_take_turns() -> None:
    threads, gate, order = FairThreads("test", 1, 1), threading.Event(), list[str]()

    def work(name: str) -> Callable[[], str]:
        def run() -> str:
            gate.wait(PATIENCE_S)
            order.append(name)
            return name

        return run

    futures = [submitted(threads, "loud", work("loud")) for _ in range(4)]
    futures += [submitted(threads, "quiet", work("quiet")) for _ in range(2)]
    gate.set()
    for each in futures:
        each.result(PATIENCE_S)
    assert order == ["loud", "loud", "quiet", "loud", "quiet", "loud"]
    threads.close()


def test_work_that_was_cancelled_is_left_out_and_errors_reach_the_caller() -> None:
    threads, gate, done = FairThreads("test", 1, 1), threading.Event(), list[str]()
    first = threads.submit(lambda: gate.wait(PATIENCE_S))
    left = threads.submit(lambda: done.append("left"))
    failing = threads.submit(lambda: 1 // 0)
    assert left.cancel()
    gate.set()
    assert first.result(PATIENCE_S)
    with pytest.raises(ZeroDivisionError):
        failing.result(PATIENCE_S)
    assert not done
    threads.close()


def test_work_on_a_small_request_is_done_at_once() -> None:
    threads = FairThreads("test", 1, 1)

    async def names(large: bool) -> str:
        is_large.set(large)
        return await threads.run_large(lambda: threading.current_thread().name)

    assert asyncio.run(names(False)) == threading.current_thread().name
    assert asyncio.run(names(True)).startswith("test")
    threads.close()
