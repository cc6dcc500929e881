"""Evidence for the figures of a row: the measurements behind them, and the bands in which they lie.

A row's replica is computed three times: as predicted, and with prefills and steps at both ends of their bands, which
are assumed to occur together. The band of a figure is its value at the two ends. A row is sized at one quantile of
these times (`quantile`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from statistics import NormalDist
from typing import Any, TypeVar

from ...server.cost.evidence import Band, Provenance
from ..simulate.load_bands import LoadFigure
from .bounds import SLOW_END
from .demand import Demand
from .options import PlanOptions
from .queueing import MAX_LOAD, Replica
from .times import MeanTimes

MOST_INSTANCES = 1 << 30


def sized_at(extrapolated: str, options: PlanOptions) -> float:
    """Return the quantile of times at which a row is sized: at least the 90th percentile without measurements."""
    return max(options.confidence, SLOW_END) if extrapolated else options.confidence


def quantile(band: Band, share: float) -> float:
    """Return the factor of a predicted time that `share` of measurements do not exceed, from 0.5 on.

    The prediction is taken as the median and the band's upper end as the 90th percentile of a log-normal distribution.
    """
    normal = NormalDist()
    return float(band.high ** (normal.inv_cdf(share) / normal.inv_cdf(SLOW_END)))


@dataclass(frozen=True, slots=True)
class Load:
    """Demand that a row serves on `count` places of `dp` replicas each."""

    options: PlanOptions
    demand: Demand
    dp: int
    each: int = 1  # instances of a place; several in a group
    count: int = 1  # places


@dataclass(frozen=True, slots=True)
class Ends:
    """A row's replica at the fast and the slow end of its bands, and the instances that each needs."""

    prefill: Band
    decode: Band
    fast: Replica
    slow: Replica
    instances: tuple[int | None, int | None]  # None: no number of them holds the limits

    @classmethod
    def of(cls, replica: Replica, prefill: Band, decode: Band, load: Load) -> Ends:
        fast, slow = replica.scaled(prefill.low, decode.low), replica.scaled(prefill.high, decode.high)
        return cls(prefill, decode, fast, slow, (fewest_instances(fast, load), fewest_instances(slow, load)))


@dataclass(frozen=True, slots=True)
class Known:
    """P10 and P90 of each figure; None if a figure has no bound, or limits cannot be held."""

    provenance: Provenance
    num_rows: int  # measurements of such steps, or of the nearest ones
    nearest: str  # measured configuration
    prefill: Band
    decode: Band
    ttft_s: tuple[float | None, float | None]
    tpot_s: tuple[float | None, float | None]
    saturated_output_tokens_s: tuple[float, float]
    instances: tuple[int | None, int | None]

    @classmethod
    def of(cls, ends: Ends, load: Load) -> Known:
        """Compute the bands of one row's figures from those of its prompts and steps."""
        joined = ends.prefill.join(ends.decode)
        early, late = _times(ends.fast, load), _times(ends.slow, load)
        share = load.dp / load.each * load.demand.output_tokens
        return cls(
            provenance=joined.provenance,
            num_rows=joined.num_rows,
            nearest=joined.nearest,
            prefill=ends.prefill,
            decode=ends.decode,
            ttft_s=(None if early is None else early.ttft_s, None if late is None else late.ttft_s),
            tpot_s=(None if early is None else early.tpot_s, None if late is None else late.tpot_s),
            saturated_output_tokens_s=(share * ends.slow.saturation, share * ends.fast.saturation),
            instances=ends.instances,
        )

    def under_load(self, times: MeanTimes, saturated_tokens_s: float, bands: Mapping[LoadFigure, Band]) -> Known:
        """Widen the bands of these figures to those of published load tests, which hold hosts and queues too."""
        return replace(
            self,
            ttft_s=_wider(self.ttft_s, times.ttft_s, bands["ttft"]),
            tpot_s=_wider(self.tpot_s, times.tpot_s, bands["itl"]),
            saturated_output_tokens_s=_wider(self.saturated_output_tokens_s, saturated_tokens_s, bands["throughput"]),
        )

    def as_json(self) -> dict[str, Any]:
        """Return bands as objects with p10 and p90; those of prefill and decode are factors of the prediction."""
        pairs = ("ttft_s", "tpot_s", "saturated_output_tokens_s", "instances")
        return {
            "provenance": self.provenance,
            "num_rows": self.num_rows,
            "nearest": self.nearest,
            **{name: band.as_json() for name, band in self._factors().items()},
            **{name: dict(zip(("p10", "p90"), getattr(self, name), strict=True)) for name in pairs},
        }

    def _factors(self) -> dict[str, Band]:
        return {"prefill_factor": self.prefill, "decode_factor": self.decode}


Ended = TypeVar("Ended", float, float | None)


def _wider(ends: tuple[Ended, Ended], value: float, band: Band) -> tuple[Ended, Ended]:
    """Return the wider of two bands of `value`; an end that is not known stays so."""
    low, high = ends
    return low if low is None else min(low, value * band.low), high if high is None else max(high, value * band.high)


def _times(replica: Replica, load: Load) -> MeanTimes | None:
    """Return times at the row's rate; None if the replicas cannot keep up with it."""
    peers = load.count * load.dp
    rate = load.options.request_rate / peers
    return replica.at(rate, peers) if rate < replica.saturation else None


def fewest_instances(replica: Replica, load: Load) -> int | None:
    """Return the instances for the rate; None if no number of them holds the limits."""
    if not replica.at(0).within(load.options.limits):
        return None
    fewest = _fewest_places(replica, load.dp, load.options)
    return None if fewest is None else load.each * fewest


def _fewest_places(replica: Replica, dp: int, options: PlanOptions) -> int | None:
    """Return the fewest places of `dp` replicas that hold the limits at the rate, with one queue for all places.

    None if not even MOST_INSTANCES do.
    """

    def holds(count: int) -> bool:
        return replica.at(options.request_rate / (count * dp), count * dp).within(options.limits)

    low = ceil(options.request_rate / (dp * MAX_LOAD * replica.saturation))
    if holds(low):
        return low
    high = low
    while not holds(high):
        high *= 2
        if high > MOST_INSTANCES:
            return None
    while high - low > 1:  # low does not hold, high does
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
