"""Threads that clients share in turns: a client's work waits behind its own work, not in front of another client's."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

MIN_THREADS = 4
SHARE = 4  # one client has at most 1 / SHARE of the threads

T = TypeVar("T")

# The client that the current task works for. It is set when a request comes in and read when its work is submitted.
owner: ContextVar[str] = ContextVar("owner", default="")
# Whether the request of the current task is so large that work on it would hold up the event loop.
is_large: ContextVar[bool] = ContextVar("is_large", default=False)


class FairThreads:
    """A pool of threads. Clients take turns, and a client has at most `most_each` threads at a time."""

    def __init__(self, name: str, num_threads: int, most_each: int, rest: float = 0.0) -> None:
        """`rest`: after each work, its thread sleeps this multiple of the work's time."""
        self.most_each = most_each
        self._num_free, self._rest = num_threads, rest
        self._executor = ThreadPoolExecutor(num_threads, name)
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # by owner, the owner whose turn is next first
        self._running: Counter[str] = Counter()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Return a future of `work`, which runs in the turn of the current `owner`. Cancelled work is skipped."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # for the caller, such as the panic of a library
                    future.set_exception(error)

        with self._lock:
            self._waiting.setdefault(owner.get(), deque()).append(run)
            self._start()
        return future

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`. A caller that is cancelled leaves the queue."""
        return await asyncio.wrap_future(self.submit(work))

    async def run_large(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, whose time grows with the request. For a small request it runs at once."""
        return await self.run(work) if is_large.get() else work()

    def close(self) -> None:
        """Drop waiting work. Running work goes on to its end."""
        with self._lock:
            self._waiting.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Give free threads to owners in turns. The caller holds the lock."""
        for name in list(self._waiting):
            if not self._num_free:
                return
            if self._running[name] >= self.most_each:
                continue
            waiting = self._waiting.pop(name)
            run = waiting.popleft()
            if waiting:
                self._waiting[name] = waiting  # behind the others
            self._num_free -= 1
            self._running[name] += 1
            self._executor.submit(self._run, name, run)

    def _run(self, name: str, run: Callable[[], None]) -> None:
        begin = time.monotonic()
        try:
            run()
            time.sleep(self._rest * (time.monotonic() - begin))
        finally:
            with self._lock:
                self._num_free += 1
                self._running[name] -= 1
                self._running += Counter()  # forget owners without work
                self._start()


def text_threads(name: str = "text") -> FairThreads:
    """Return threads for work on texts, which releases the GIL or waits for another process."""
    num_threads = max(MIN_THREADS, os.cpu_count() or 1)
    return FairThreads(name, num_threads, num_threads // SHARE)
