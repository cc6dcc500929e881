"""Time is a value: whoever needs it is handed a clock. Owns nothing but the reading of time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic time."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never goes backward."""
        ...


class MonotonicClock:
    """The host's monotonic clock (the same origin in every process of the host)."""

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to: for tests and for simulation."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; raises ValueError when negative."""
        if seconds < 0:
            raise ValueError(f"cannot advance by {seconds} seconds")
        self._now += seconds
