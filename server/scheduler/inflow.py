"""Who else comes: the share of an engine's time that requests of each priority take. Pure.

A request waits for those ahead of it, and for those who come later and are more urgent. With a share s of the engine's
time for the latter, its wait is 1 / (1 - s) times as long.
"""

from __future__ import annotations

from math import exp

MEMORY_S = 10.0  # what came before weighs less and less
MOST = 0.99
MAX_KEPT = 64  # priorities


class Inflow:
    """Of one engine."""

    def __init__(self) -> None:
        self._taken: dict[int, tuple[float, float]] = {}  # by priority: seconds of the engine, as of a time

    def add(self, priority: int, now: float, seconds: float) -> None:
        """Note a request that was taken, and needs so many seconds of the engine."""
        before = self._seconds(priority, now)
        self._taken.pop(priority, None)
        self._taken[priority] = before + seconds, now
        if len(self._taken) > MAX_KEPT:
            del self._taken[next(iter(self._taken))]

    def share_before(self, priority: int, now: float) -> float:
        """Of the engine's time, what those take who are more urgent than `priority`; below 1."""
        return min(MOST, sum(self._seconds(each, now) for each in self._taken if each < priority) / MEMORY_S)

    def _seconds(self, priority: int, now: float) -> float:
        seconds, then = self._taken.get(priority, (0.0, now))
        return seconds * exp((then - now) / MEMORY_S)
