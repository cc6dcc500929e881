"""Scheduler of an engine that generates and encodes: steps of each kind take turns. Pure, as the two it asks.

A text waits for one step of sequences, and sequences wait for one step of texts, however many of either there are.
"""

from __future__ import annotations

from collections import deque

from ..types import Request, StepPlan, StepReport, StepResult, TokenEvent
from .pooling import PoolingScheduler
from .scheduler import Scheduler


class SharedScheduler:
    """Implements neuronserve.server.engine.loop.Scheduler. Step ids count the steps of both schedulers together."""

    def __init__(self, generation: Scheduler, pooling: PoolingScheduler) -> None:
        self._generation, self._pooling = generation, pooling
        self._step_id = 0
        self._own_ids: deque[int] = deque()  # of each step in flight, as the scheduler that planned it counts
        self._was_pooled = False  # the last step was one of texts
        self._is_behind = False  # something was left to do when it ended

    @property
    def has_work(self) -> bool:
        return self._generation.has_work or self._pooling.has_work

    @property
    def open_ids(self) -> tuple[str, ...]:
        return (*self._generation.open_ids, *self._pooling.open_ids)

    def add(self, request: Request, encoded: tuple[int, ...] = ()) -> None:
        if request.pooling is None:
            self._generation.add(request, encoded)
        else:
            self._pooling.add(request)

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        return self._pooling.abort(request_id, now) or self._generation.abort(request_id, now)

    def reset_prefix_cache(self) -> None:
        self._generation.reset_prefix_cache()

    def schedule(self, now: float) -> StepPlan:
        """Return a step of the kind whose turn it is, or of the other kind when that one has nothing to do."""
        generates, pools = self._generation.has_work, self._pooling.has_work
        self._was_pooled = pools and not (generates and self._was_pooled)
        plan = (self._pooling if self._was_pooled else self._generation).schedule(now)
        self._own_ids.append(plan.step_id)
        self._step_id += 1
        return plan._replace(step_id=self._step_id, follows=self._is_behind)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        in_order = plan.step_id == result.step_id == self._step_id - len(self._own_ids) + 1
        assert in_order, "plans are applied one by one, in order"
        own_id = self._own_ids.popleft()
        plan, result = plan._replace(step_id=own_id), result._replace(step_id=own_id)
        events = (self._pooling if plan.is_pooled else self._generation).apply(plan, result, now)
        self._is_behind = self.has_work
        return events

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        report = self._generation.report(plan, result, now)
        return report._replace(num_waiting=report.num_waiting + self._pooling.num_waiting)
