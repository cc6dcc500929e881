"""Arrival times of requests: one process for all synthetic arrivals, independent of the server (open loop).

The gaps of a gamma process have shape `burstiness` and mean 1/rate, as in `vllm bench serve`. Shape 1 is a Poisson
process; below 1 arrivals come in bursts, above 1 they even out, and at infinity they are evenly spaced. At an infinite
rate all arrive at once. The first request arrives at 0; the last is not moved to exactly n/rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from ..clock import NS
from ..errors import SettingsError
from .workload import MAX_SECONDS, FloatArray, IntArray

Ramp = Literal["linear", "exponential"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that arrive at `rate` a second, or at a rate that changes to `end_rate` over the requests."""

    rate: float  # requests a second; infinity: all at once
    burstiness: float = 1.0  # shape of the gamma gaps: 1 = Poisson, less = burstier, infinity = evenly spaced
    end_rate: float | None = None  # of the last request of a ramp; None: the rate is constant
    ramp: Ramp = "linear"

    def __post_init__(self) -> None:
        """Raises SettingsError for numbers that describe no process."""
        for name, value in (("request_rate", self.rate), ("burstiness", self.burstiness)):
            if not value > 0:
                raise SettingsError(f"{name} is {value:g}: it must be above 0")
        if self.end_rate is not None and not (0 < self.end_rate < inf and self.rate < inf):
            raise SettingsError(f"a ramp from {self.rate:g} to {self.end_rate:g}: both rates are above 0 and finite")

    def __str__(self) -> str:
        if self.rate == inf:
            return "all at once"
        kind = {1.0: "poisson", inf: "constant"}.get(self.burstiness, "gamma")
        rise = "" if self.end_rate is None else f" to {self.end_rate:g}"
        return f"{kind}, {self.rate:g}{rise} requests/s"

    def times_ns(self, random: np.random.Generator, size: int) -> IntArray:
        """Return `[size]` nanoseconds since the first arrival, ascending. Without a ramp, a longer list begins equally.

        Raises SettingsError when the time exceeds what can be counted.
        """
        if self.rate == inf:
            return np.zeros(size, dtype=np.int64)
        gaps = self._unit_gaps(random, size) / self._rates(size)
        gaps[:1] = 0.0
        times = np.cumsum(gaps)
        if size and times[-1] >= MAX_SECONDS:
            raise SettingsError(f"{size} requests at {self.rate:g} a second take over {MAX_SECONDS} seconds")
        return np.rint(times * NS).astype(np.int64)

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
