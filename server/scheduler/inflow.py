"""Who else comes: the share of an engine's time that later requests take which are served before a request. Pure.

A request waits for those ahead of it, and for those who come later and are more urgent, or whose tenant has its turn
first because it takes less of the engine. With a share s of the engine's time for these, its wait is 1 / (1 - s) times
as long.
"""

from __future__ import annotations

from math import exp, inf

MEMORY_S = 5.0  # what came before weighs less and less
LEAST_S = 0.5  # over which a share is taken at least: one request is no flood
FORGOTTEN_S = 4 * MEMORY_S  # without a request: the next one begins anew
MOST = 0.99
MAX_KEPT = 256  # tenants and priorities


class Inflow:
    """Of one engine."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, str], tuple[float, float]] = {}  # seconds of the engine, as of a time
        self._began, self._latest = -inf, -inf

    def add(self, priority: int, tenant: str, now: float, seconds: float) -> None:
        """Note a request that was taken, and needs so many seconds of the engine."""
        if now - self._latest > FORGOTTEN_S:
            self._began = now
        self._latest = now
        key = priority, tenant
        before = self._seconds(key, now)
        self._taken.pop(key, None)
        self._taken[key] = before + seconds, now
        if len(self._taken) > MAX_KEPT:
            del self._taken[next(iter(self._taken))]

    def share_before(self, priority: int, tenant: str, now: float) -> float:
        """Of the engine's time, what those take who are served before an earlier request of `tenant`; below 1."""
        own = self._seconds((priority, tenant), now)
        seconds = 0.0
        for key in self._taken:
            taken = self._seconds(key, now)
            if key[0] < priority or (key[0] == priority and key[1] != tenant and taken < own):
                seconds += taken
        return min(MOST, seconds / self._window_s(now))

    def _window_s(self, now: float) -> float:
        """The time that seconds were taken in, as those of long ago count: short since requests began to come."""
        return max(LEAST_S, MEMORY_S * (1 - exp((self._began - now) / MEMORY_S)))

    def _seconds(self, key: tuple[int, str], now: float) -> float:
        seconds, then = self._taken.get(key, (0.0, now))
        return seconds * exp((then - now) / MEMORY_S)
