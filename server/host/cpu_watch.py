"""Watches how many threads of this process can run at once while it runs: CPUs and quotas may be taken away."""

from __future__ import annotations

from collections.abc import Callable

from .cpu_quota import host_threads

LOOK_S = 0.5  # seconds between two looks, each of which reads a few files of /proc and /sys


class CpuWatch:
    """The worker threads to use: all `most`, or as many as CPUs are left while there are fewer than at the start.

    So a number of threads that was chosen beyond the CPUs is kept until CPUs are taken away.
    """

    def __init__(self, most: int, num_engines: int = 1, count: Callable[[], int] = host_threads) -> None:
        """`num_engines` processes share the CPUs, which `count` counts."""
        self._most, self._num_engines, self._count = most, num_engines, count
        self._at_start, self._due_s = count(), 0.0
        self.num_threads = most

    def look(self, now_s: float) -> bool:
        """Count again if LOOK_S seconds are over; return whether the number has changed."""
        if now_s < self._due_s:
            return False
        self._due_s, left, before = now_s + LOOK_S, self._count(), self.num_threads
        each = max(1, min(self._most, left // self._num_engines))
        self.num_threads = self._most if left >= self._at_start else each
        return self.num_threads != before
