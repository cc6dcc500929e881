"""One engine that generates and encodes: steps of each kind, in turns. Pure, as the two schedulers that it asks.

A text waits for one step of those that generate, and they for one step of texts, however many of either there are.
"""

from __future__ import annotations

from neuronserve.server.scheduler.pooling import PoolingScheduler
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, StepPlan, StepReport, StepResult, TokenEvent


class SharedScheduler:
    """The interface of either. Step ids are those of one sequence of steps."""

    def __init__(self, generation: Scheduler, pooling: PoolingScheduler) -> None:
        self._generation, self._pooling = generation, pooling
        self._step_id = 0
        self._own_id = 0  # of the step under way, by the scheduler that planned it
        self._was_pooled = False  # the last step
        self._is_behind = False  # something was left to do when it ended

    @property
    def has_work(self) -> bool:
        return self._generation.has_work or self._pooling.has_work

    @property
    def open_ids(self) -> tuple[str, ...]:
        return (*self._generation.open_ids, *self._pooling.open_ids)

    def add(self, request: Request) -> None:
        (self._generation if request.pooling is None else self._pooling).add(request)

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        return self._pooling.abort(request_id, now) or self._generation.abort(request_id, now)

    def reset_prefix_cache(self) -> None:
        self._generation.reset_prefix_cache()

    def schedule(self, now: float) -> StepPlan:
        """A step of the kind whose turn it is, of the other one where that has nothing to do."""
        generates, pools = self._generation.has_work, self._pooling.has_work
        self._was_pooled = pools and not (generates and self._was_pooled)
        plan = (self._pooling if self._was_pooled else self._generation).schedule(now)
        self._own_id, self._step_id = plan.step_id, self._step_id + 1
        return plan._replace(step_id=self._step_id, follows=self._is_behind)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        assert plan.step_id == result.step_id == self._step_id, "plans are applied one by one, in order"
        plan, result = plan._replace(step_id=self._own_id), result._replace(step_id=self._own_id)
        events = (self._pooling if plan.is_pooled else self._generation).apply(plan, result, now)
        self._is_behind = self.has_work
        return events

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        report = self._generation.report(plan, result, now)
        return report._replace(num_waiting=report.num_waiting + self._pooling.num_waiting)
