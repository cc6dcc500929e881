"""Waits of requests in batches: static ones, and prompts encoded together. Formulas: docs/internals/planner.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, sqrt

from ...server.scheduler.batching import BatchingPolicy
from .formulas import constant_wait_s, pooling
from .times import Wait

BISECTIONS = 16
FRESH = -1 / 3  # power of the number of replicas: how evenly arrivals find batches under way, fitted to simulations
EULER = 0.5772  # harmonic numbers are ln n + EULER


def longest_of(count: float, cv2: float) -> float:
    """Return the mean of the longest of `count` lengths over their mean. Exact for constant and exponential ones."""
    return 1 + sqrt(cv2) * max(0.0, log(max(1.0, count)) + EULER - 1)


@dataclass(frozen=True, slots=True)
class StaticBatches:
    """Static batches at one rate. Each ends before the next begins, which takes waiting requests up to the slots."""

    rate: float  # of one replica
    slots: int
    peers: int  # replicas; a request goes to the one with the fewest open requests, and stays there
    size: float  # mean number of requests
    seconds: float  # of such a batch
    alone_s: float  # of a batch of one

    @classmethod
    def at(cls, rate: float, slots: int, batch_s: Callable[[float], float], peers: int = 1) -> StaticBatches:
        """Find the size at which a batch holds the arrivals of the batch before, or one request if there were none."""
        low, high = 1.0, float(slots)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            arrivals = rate * batch_s(middle)
            low, high = (middle, high) if arrivals + exp(-arrivals) > middle else (low, middle)
        return cls(rate, slots, peers, high, batch_s(high), batch_s(1.0))

    @property
    def arrivals(self) -> float:
        """Requests that arrive during a batch."""
        return min(self.rate * self.seconds, 0.999 * self.slots)

    @property
    def busy(self) -> float:
        """Share of the requests that find a batch under way everywhere."""
        alone = self.arrivals / (self.arrivals + exp(-self.arrivals))
        return alone * pooling(1, self.peers, min(1.0, self.rate * self.alone_s))

    @property
    def seen_size(self) -> float:
        """Mean batch size over requests. It exceeds the mean over batches, as large batches have more requests."""
        seen = self.size + (1 + self.busy * self.arrivals - self.size) / sqrt(self.peers)
        return min(float(self.slots), seen)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """Waits for the end of the batch under way, and of further batches if more requests wait than there are slots.

        A lone replica is found anywhere in its batch. Of several, the fewest requests are open where a batch has just
        begun, so that requests wait for nearly a whole batch. Requests that do not fit into the next batch are the
        queue of M/D/c with a server for each slot (Crommelin 1932): it loses as many every `seconds`.
        """
        load = self.arrivals / self.slots
        left_s = constant_wait_s(self.slots, load, self.seconds) * self.arrivals / self.size
        left_s *= pooling(self.slots, self.peers, load) / self.peers
        left = min(self.busy, left_s / self.seconds)
        rest_s = self.seconds / 2 * self.peers**FRESH
        least_s = self.seconds - 2 * rest_s
        return (
            Wait(self.busy - left, rest_s, least_s, is_even=True),
            Wait(left, rest_s, least_s + (left_s / left if left else 0.0), is_even=True),
        )


def gated(policy: BatchingPolicy, rate: float, busy: float, prefill_s: float, step_s: float) -> tuple[float, float]:
    """Return the mean wait of a prompt while `busy` slots decode on average, and the mean number encoded with it."""
    spread = sqrt(busy)
    few, many = (_gated(policy, rate, max(1.0, number), prefill_s, step_s) for number in (busy - spread, busy + spread))
    return (few[0] + many[0]) / 2, (few[1] + many[1]) / 2


def _gated(policy: BatchingPolicy, rate: float, busy: float, prefill_s: float, step_s: float) -> tuple[float, float]:
    """Return the same for exactly `busy` slots: encoding starts with enough prompts, or after the most steps."""
    least = max(1, int(policy.waiting_ratio * busy))
    company_s = (least - 1) / (2 * rate) + step_s / 2
    most_s = policy.max_waiting_steps * step_s
    cycle_s = most_s / max(1e-9, 1 - rate * prefill_s)  # with the prompts that arrived in it
    arrivals, none = rate * cycle_s, exp(-rate * cycle_s)
    timed_s = (arrivals * cycle_s + none * step_s) / 2 / (arrivals + none)
    if company_s < timed_s:
        return company_s, float(least)
    return timed_s, 1 + arrivals
