"""The process that plans for pages, so that no stream of tokens waits for a plan. It ends when unused."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal

from ..server.host.confinement import follow_parent
from ..server.host.fork_server import no_interrupts_for_children
from .question import InForce

IDLE_S = 60.0  # without a question, after which the process ends
PLANNING = "neuronserve.console.planning"  # imported by that process alone, because it imports the whole planner
Work = Literal["choices", "require_public", "plan_part", "files_of"]  # functions of that module


class PlanProcess:
    """Process that the first question starts. Used on one event loop."""

    def __init__(self, in_force: InForce) -> None:
        self._in_force = in_force
        self._pool: ProcessPoolExecutor | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._num_open = 0

    async def call(self, work: Work, *args: Any) -> Any:
        """Return the result of `work` in the process; its arguments must be picklable. Raises its exceptions."""
        if self._ending is not None:
            self._ending.cancel()
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, _prepare, (self._in_force,))
        self._num_open += 1
        try:
            with no_interrupts_for_children():
                answer = self._pool.submit(_run, work, args)
            return await asyncio.wrap_future(answer)
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._ending = asyncio.get_running_loop().call_later(IDLE_S, self.close)

    def close(self) -> None:
        """End the process; a later question starts another."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _prepare(in_force: InForce) -> None:
    follow_parent()
    in_force.apply()


def _run(work: Work, args: tuple[Any, ...]) -> Any:
    return getattr(importlib.import_module(PLANNING), work)(*args)
