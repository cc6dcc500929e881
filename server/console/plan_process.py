"""The process that plans for pages, so that no stream of tokens waits for a plan. Lives while it is used."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

from server.console.planning import InForce

IDLE_S = 60.0  # without a question, after which the process ends
P = ParamSpec("P")
T = TypeVar("T")


class PlanProcess:
    """Started by the first question. Used on one event loop."""

    def __init__(self, in_force: InForce) -> None:
        self._in_force = in_force
        self._pool: ProcessPoolExecutor | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._num_open = 0

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work` in the process; it and its arguments must be picklable. Raises what it raises."""
        if self._ending is not None:
            self._ending.cancel()
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, self._in_force.apply)
        self._num_open += 1
        try:
            return await asyncio.wrap_future(self._pool.submit(work, *args, **kwargs))
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._ending = asyncio.get_running_loop().call_later(IDLE_S, self.close)

    def close(self) -> None:
        """End the process; a later question starts another."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
