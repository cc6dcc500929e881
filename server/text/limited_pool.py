"""Several limited processes for the same work, and a queue of calls to them whose results are futures."""

from __future__ import annotations

import contextlib
import functools
import queue
from collections.abc import Callable
from concurrent.futures import Future

from ..errors import QueueFull
from .fair_threads import FairThreads
from .limited_process import LimitedProcess, Refusal, Reply, Work


class LimitedPool:
    """Processes for the same work, so that a long call delays no other. They are started when they are needed."""

    def __init__(self, work: Work, size: int) -> None:
        self._all = [LimitedProcess(work) for _ in range(size)]
        self._free = queue.LifoQueue[LimitedProcess]()  # last used, first taken: the others need not start
        for process in reversed(self._all):
            self._free.put(process)

    @property
    def pid(self) -> int | None:
        """Id of the first process; None while there is none."""
        return self._all[0].pid

    def start(self) -> None:
        """Start one process and prepare it. Raises Refusal."""
        self._all[0].start()

    def call(self, call: bytes) -> str:
        """Do one call that returns text in a free process. Raises Refusal."""
        return self.reply(call).text

    def reply(self, call: bytes) -> Reply:
        """Do one call in a free process. Raises Refusal.

        A process that the call has ended is started again before it takes another call.
        """
        process = self._free.get()
        try:
            return process.reply(call)
        except Refusal:
            with contextlib.suppress(Refusal):
                process.start()
            raise
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End all processes. A later call starts one again."""
        for process in self._all:
            process.close()


class CallQueue:
    """Calls to a pool of processes. Clients take turns, and a limited number of calls wait.

    The pool has one process more than a client may use, so that hostile calls delay only their own client. To be used
    by one thread, such as an event loop's.
    """

    def __init__(
        self, work: Work, threads: FairThreads, max_waiting: int, what: str, refused: Callable[[Refusal], str]
    ) -> None:
        """`what` waits, in a message. `refused` returns the result of a call that was refused, or raises."""
        self._pool = LimitedPool(work, threads.most_each + 1)
        self._threads, self._max_waiting, self._what, self._refused = threads, max_waiting, what, refused
        self._waiting: set[Future[str]] = set()

    def submit(self, call: bytes) -> Future[str]:
        """Return a future of the call's result. Raises QueueFull when too many calls wait."""
        self._waiting = {future for future in self._waiting if not future.done()}
        if len(self._waiting) >= self._max_waiting:
            raise QueueFull(f"{len(self._waiting)} {self._what}, the most that may. Try again later.")
        future = self._threads.submit(functools.partial(self._run, call))
        self._waiting.add(future)
        return future

    def restart(self) -> None:
        """End the processes, in a thread. The next call starts one again."""
        self._threads.submit(self._pool.close)

    def close(self) -> None:
        """End the processes and cancel the calls that wait."""
        self._threads.close()
        self._pool.close()

    def _run(self, call: bytes) -> str:
        try:
            return self._pool.call(call)
        except Refusal as error:
            return self._refused(error)
