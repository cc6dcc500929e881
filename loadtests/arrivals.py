"""When requests arrive: offsets in seconds from the start of a run, ascending. Open loop: nothing here knows a server.

The gaps of a gamma process have shape `burstiness` and mean 1/rate, as in `vllm bench serve`: 1 is a Poisson process,
below 1 arrivals come in bursts, above 1 they even out. Offsets are not rescaled to end exactly at n/rate: a Poisson
process does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from loadtests.errors import SpecError

RampStrategy = Literal["linear", "exponential"]


def gamma(n: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """`n` arrivals at `rate` a second. Raises SpecError when rate or burstiness is not above 0."""
    _require_positive("request_rate", rate)
    _require_positive("burstiness", burstiness)
    gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), n)
    return [float(t) for t in np.cumsum(gaps)]


def poisson(n: int, rate: float, seed: int) -> list[float]:
    """`n` arrivals whose gaps are exponential with mean 1/rate seconds."""
    return gamma(n, rate, 1.0, seed)


def constant(n: int, rate: float) -> list[float]:
    """`n` arrivals, 1/rate seconds apart; the first at 0."""
    _require_positive("request_rate", rate)
    return [i / rate for i in range(n)]


def all_at_once(n: int) -> list[float]:
    """`n` arrivals at the start."""
    return [0.0] * n


def ramp(n: int, rates: tuple[float, float], strategy: RampStrategy, seed: int) -> list[float]:
    """`n` arrivals of a Poisson process whose rate goes from the first to the second of `rates` over the n arrivals."""
    first, last = rates
    _require_positive("ramp_up_start_rps", first)
    _require_positive("ramp_up_end_rps", last)
    progress = np.linspace(0, 1, n)
    rate = first + (last - first) * progress if strategy == "linear" else first * (last / first) ** progress
    gaps = np.random.default_rng(seed).exponential(1.0, n) / rate
    return [float(t) for t in np.cumsum(gaps)]


def trace(timestamps: Sequence[float], speed: float) -> list[float]:
    """A trace's own arrivals (seconds), from its first on, `speed` times as fast."""
    _require_positive("trace_speed", speed)
    if not timestamps:
        return []
    return [(t - timestamps[0]) / speed for t in timestamps]


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise SpecError(f"{name} is {value}: it must be above 0 and finite")
