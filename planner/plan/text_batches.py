"""Latency of texts on a replica that takes up to `batch` waiting texts into one pass. Formulas: planner.md.

Times are in passes where `pass_s` is 1. Arrivals are a Poisson stream; load is the share of full passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp

from .queueing import MAX_LOAD
from .times import BISECTIONS, Limit

# Median of p99 over p50 of the passes in 450 published benchmark rows; 9 of 10 are below 1.25 with one worker a core.
BENCHMARK_TAIL = 1.05
LONGEST = 64.0  # waits of a quantile's search, in passes


@dataclass(frozen=True, slots=True)
class TextTimes:
    """Times of a text at one load: half of a pass under way on average, and the delay of a full queue."""

    pass_s: float
    batch: int
    load: float

    @property
    def under_way(self) -> float:
        """Share of time with a pass under way: the load, or for large batches that of taking all waiting texts."""
        arrivals = self.load * self.batch  # during a pass
        return max(self.load, 1 - 1 / (1 + arrivals * exp(min(arrivals, 50.0))))

    @property
    def queue(self) -> float:
        """Mean passes of a wait for texts before one's own batch; M/D/1 for a batch of 1."""
        return self.load**2 / (2 * self.batch * (1 - self.load))

    @property
    def latency_s(self) -> float:
        """Mean seconds from a text's arrival to the end of its pass."""
        return self.pass_s * (1 + self.under_way / 2 + self.queue)

    def quantile_s(self, share: float) -> float:
        """Return the latency that `share` of the texts do not exceed."""
        low, high = 0.0, LONGEST
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._waits_beyond(middle) > 1 - share else (low, middle)
        return self.pass_s * (1 + high)

    def _waits_beyond(self, passes: float) -> float:
        """Return the share that waits longer: the rest of a pass is even, a queue behind it exponential."""
        if passes <= 0:
            return self.under_way
        mean = 1 / (2 * self.batch * (1 - self.load))  # of those that queue
        queued = min(1.0, self.queue / self.under_way / mean)
        rest = max(0.0, 1 - passes)
        full = mean * (exp(-max(0.0, passes - 1) / mean) - exp(-passes / mean))
        return self.under_way * ((1 - queued) * rest + queued * (rest + full))

    def within(self, limits: Iterable[Limit]) -> bool:
        """Return whether the limits of TTFT, which of a text is its latency, are kept."""
        return all(self.of(limit) <= limit.seconds for limit in limits)

    def of(self, limit: Limit) -> float:
        """Return the limited figure, in seconds."""
        return self.latency_s if limit.share is None else self.quantile_s(limit.share)


def load_within(pass_s: float, batch: int, limits: tuple[Limit, ...]) -> float:
    """Return the highest load, at most MAX_LOAD, at which the limits are kept; 0 if there is none."""
    low, high = 0.0, MAX_LOAD
    if TextTimes(pass_s, batch, high).within(limits):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if TextTimes(pass_s, batch, middle).within(limits) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A benchmark of one instance as published: workers send their next batch when the last one is answered."""

    models: int  # copies, each on its own cores
    workers: int  # of each model
    texts_s: float
    latency_p50_s: float
    latency_p99_s: float

    @classmethod
    def of(cls, pass_s: float, batch: int, models: int, workers: int) -> ClosedLoop:
        """Return the figures: passes of one model run one after another, so workers beyond the first wait."""
        latency = workers * pass_s
        return cls(models, workers, models * batch / pass_s, latency, latency * BENCHMARK_TAIL)
