"""Clocks as arguments: the host's monotonic clock, and a manual one for tests and simulation."""

from __future__ import annotations

import time
from typing import Protocol

NS = 1_000_000_000  # nanoseconds in a second
SPIN_S = 2e-4  # the end of a wait is spun, not slept: a sleep may return that much late


class Clock(Protocol):
    """A source of monotonic time."""

    def now(self) -> float:
        """Return seconds since an arbitrary origin; never goes backward."""
        ...


class Waiter(Clock, Protocol):
    """A clock that can be waited on."""

    def wait_until(self, time_s: float) -> None:
        """Wait until `now()` has reached `time_s`; return at once when that is past."""
        ...


class MonotonicClock:
    """The host's monotonic clock (the same origin in every process of the host)."""

    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, time_s: float) -> None:
        """Sleep, then spin for the last SPIN_S: exact to microseconds on a host with a spare core."""
        while (left_s := time_s - time.monotonic()) > 0:
            if left_s > SPIN_S:
                time.sleep(left_s - SPIN_S)


class ManualClock:
    """A clock that moves only by `advance` and `wait_until`."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; raises ValueError when negative."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} seconds")
        self._now += seconds

    def wait_until(self, time_s: float) -> None:
        """Move forward to `time_s`, if that is in the future."""
        self._now = max(self._now, time_s)
