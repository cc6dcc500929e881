"""Requests that are served in batches: static ones, and prompts that wait for company. Formulas: planner.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, sqrt

from neuronserve.planner.plan.formulas import constant_wait_s
from neuronserve.planner.plan.times import Wait
from neuronserve.server.scheduler.batching import BatchingPolicy

BISECTIONS = 16
EULER = 0.5772  # harmonic numbers are ln n + EULER


def longest_of(count: float, cv2: float) -> float:
    """Mean of the longest of `count` lengths in multiples of their mean: exact for constant and exponential ones."""
    return 1 + sqrt(cv2) * max(0.0, log(max(1.0, count)) + EULER - 1)


@dataclass(frozen=True, slots=True)
class StaticBatches:
    """Batches that end before the next begins, at one rate: all that wait then, up to the slots, are the next."""

    rate: float
    slots: int
    size: float  # mean number of requests
    seconds: float  # of such a batch

    @classmethod
    def at(cls, rate: float, slots: int, batch_s: Callable[[float], float]) -> StaticBatches:
        """A batch holds what came during the one before, or whoever comes first when nobody did."""
        low, high = 1.0, float(slots)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            came = rate * batch_s(middle)
            low, high = (middle, high) if came + exp(-came) > middle else (low, middle)
        return cls(rate, slots, high, batch_s(high))

    @property
    def came(self) -> float:
        """Requests that come during a batch."""
        return min(self.rate * self.seconds, 0.999 * self.slots)

    @property
    def seen_size(self) -> float:
        """Mean size of the batch that a request is in: there are more requests in large ones."""
        return min(float(self.slots), 1 + self.came)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """For the end of the batch under way, and of those between where more wait than there are slots.

        What is left over is the queue of M/D/c with a server for each slot (Crommelin 1932): it loses as many every
        `seconds`.
        """
        busy = self.came / (self.came + exp(-self.came))
        left_s = constant_wait_s(self.slots, self.came / self.slots, self.seconds) * self.came / self.size
        left = min(busy, left_s / self.seconds)
        rest_s = self.seconds / 2
        return Wait(busy - left, rest_s, is_even=True), Wait(left, rest_s, left_s / left if left else 0.0, is_even=True)


def gated(policy: BatchingPolicy, rate: float, busy: float, prefill_s: float, step_s: float) -> tuple[float, float]:
    """Mean wait of a prompt while `busy` slots decode in the mean, and mean number of those encoded with it."""
    spread = sqrt(busy)
    few, many = (_gated(policy, rate, max(1.0, number), prefill_s, step_s) for number in (busy - spread, busy + spread))
    return (few[0] + many[0]) / 2, (few[1] + many[1]) / 2


def _gated(policy: BatchingPolicy, rate: float, busy: float, prefill_s: float, step_s: float) -> tuple[float, float]:
    """As `gated`: when there are enough for so many busy slots, or after the most steps, whichever comes first."""
    least = max(1, int(policy.waiting_ratio * busy))
    company_s = (least - 1) / (2 * rate) + step_s / 2
    most_s = policy.max_waiting_steps * step_s
    cycle_s = most_s / max(1e-9, 1 - rate * prefill_s)  # with the prompts that came in it
    came, nobody = rate * cycle_s, exp(-rate * cycle_s)
    timed_s = (came * cycle_s + nobody * step_s) / 2 / (came + nobody)
    if company_s < timed_s:
        return company_s, float(least)
    return timed_s, 1 + came
