"""Arrival times of requests: one process for all synthetic arrivals, independent of the server (open loop).

The gaps of a gamma process have shape `burstiness` and mean 1/rate, as in `vllm bench serve`. Shape 1 is a Poisson
process; below 1 arrivals come in bursts, above 1 they even out, and at infinity they are evenly spaced. At an infinite
rate all arrive at once. The first request arrives at 0; the last is not moved to exactly n/rate. With a day the rate
follows a sine of 24 hours that begins at its lowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from ..server.clock import NS
from ..server.errors import SettingsError
from .workload import MAX_SECONDS, FloatArray, IntArray

Ramp = Literal["linear", "exponential"]
DAY_S, MINUTE_S = 86_400, 60


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that arrive at `rate` a second, or at a rate that changes to `end_rate` over the requests."""

    rate: float  # requests a second; infinity: all at once
    burstiness: float = 1.0  # shape of the gamma gaps: 1 = Poisson, less = burstier, infinity = evenly spaced
    end_rate: float | None = None  # of the last request of a ramp; None: the rate is constant
    ramp: Ramp = "linear"
    day: float = 0.0  # share by which the rate of the busiest minute is above the mean, and that of the quietest below

    def __post_init__(self) -> None:
        """Raises SettingsError for numbers that describe no process."""
        for name, value in (("request_rate", self.rate), ("burstiness", self.burstiness)):
            if not value > 0:
                raise SettingsError(f"{name} is {value:g}: it must be above 0")
        if self.end_rate is not None and not (0 < self.end_rate < inf and self.rate < inf):
            raise SettingsError(f"a ramp from {self.rate:g} to {self.end_rate:g}: both rates are above 0 and finite")
        if not 0 <= self.day < 1 or (self.day and self.rate == inf):
            raise SettingsError(
                f"day is {self.day:g} at {self.rate:g} requests/s: it is 0 to below 1, of a finite rate"
            )

    def __str__(self) -> str:
        if self.rate == inf:
            return "all at once"
        kind = {1.0: "poisson", inf: "constant"}.get(self.burstiness, "gamma")
        rise = "" if self.end_rate is None else f" to {self.end_rate:g}"
        day = f", by day {1 - self.day:g} to {1 + self.day:g} times" if self.day else ""
        return f"{kind}, {self.rate:g}{rise} requests/s{day}"

    def times_ns(self, random: np.random.Generator, size: int) -> IntArray:
        """Return `[size]` nanoseconds since the first arrival, ascending. Without a ramp, a longer list begins equally.

        Raises SettingsError when the time exceeds what can be counted.
        """
        if self.rate == inf:
            return np.zeros(size, dtype=np.int64)
        gaps = self._unit_gaps(random, size) / self._rates(size)
        gaps[:1] = 0.0
        times = self._by_day(np.cumsum(gaps))
        if size and times[-1] >= MAX_SECONDS:
            raise SettingsError(f"{size} requests at {self.rate:g} a second take over {MAX_SECONDS} seconds")
        return np.rint(times * NS).astype(np.int64)

    def _by_day(self, times: FloatArray) -> FloatArray:
        """Return when arrivals of a constant rate come at the rate of the day, which is constant in each minute."""
        if not self.day or not len(times):
            return times
        minutes = np.arange(0, times[-1] + DAY_S, MINUTE_S)
        turn = 2 * np.pi / DAY_S
        arrived = minutes - self.day / turn * np.sin(turn * minutes)  # the rate's integral, over the mean rate
        return np.interp(times, arrived, minutes)

    def _unit_gaps(self, random: np.random.Generator, size: int) -> FloatArray:
        """Return gaps of mean 1."""
        if self.burstiness == inf:
            return np.ones(size)
        return random.standard_gamma(self.burstiness, size) / self.burstiness

    def _rates(self, size: int) -> FloatArray:
        """Return requests a second at each request."""
        if self.end_rate is None:
            return np.full(size, self.rate)
        progress = np.linspace(0, 1, size)
        if self.ramp == "linear":
            return self.rate + (self.end_rate - self.rate) * progress
        return self.rate * (self.end_rate / self.rate) ** progress
