"""Bisection for the highest rate: doubling until one fails (or halving until one holds), then bisection. Pure."""

from __future__ import annotations

import math

from neuronserve.loadtests.errors import SpecError


class Bisection:
    """Try `next_rate` and `note` the outcome, until it is None: the knee is bracketed within the tolerance."""

    def __init__(self, start: float, tolerance: float, max_points: int) -> None:
        if not 0 < start < math.inf:
            raise SpecError(f"start_rate is {start:g}: it must be above 0 and finite")
        if not 0 < tolerance < 1:
            raise SpecError(f"tolerance is {tolerance:g}: it must be between 0 and 1")
        if max_points < 1:
            raise SpecError(f"max_points is {max_points}: it must be at least 1")
        self._start, self._tolerance, self._left = start, tolerance, max_points
        self.highest_held: float | None = None
        self.lowest_failed: float | None = None

    def next_rate(self) -> float | None:
        """The rate to try now."""
        if self._left == 0:
            return None
        held, failed = self.highest_held, self.lowest_failed
        if held is None:
            return self._start if failed is None else failed / 2
        if failed is None:
            return held * 2
        return math.sqrt(held * failed) if failed / held > 1 + self._tolerance else None

    def note(self, rate: float, holds: bool) -> None:
        """Record an outcome. A higher rate may hold by luck where a lower one failed; the failure counts."""
        self._left -= 1
        if holds and (self.lowest_failed is None or rate < self.lowest_failed):
            self.highest_held = max(rate, self.highest_held or 0.0)
        elif not holds:
            self.lowest_failed = min(rate, self.lowest_failed or math.inf)

    @property
    def is_bracketed(self) -> bool:
        """True when there is a rate that holds and one that does not."""
        return self.highest_held is not None and self.lowest_failed is not None
