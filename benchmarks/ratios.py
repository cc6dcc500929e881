"""Ratios of paired measurements, with intervals that assume nothing of how the values are distributed.

Round i measures both sides one after the other, so that slow drift of the machine cancels in the round's ratio. The
median of the ratios is reported with the interval between two of them in order: it holds the true median unless too
many rounds fall on one side of it, which is a matter of coin tosses (Conover, "Practical Nonparametric Statistics",
3rd edition, section 3.2).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """This side's values divided by the other's, round by round."""

    median: float
    low: float
    high: float
    coverage: float  # chance that the interval holds the true median: below CONFIDENCE for fewer than 6 rounds
    ours: float  # median over the rounds
    theirs: float
    spread: float  # (largest - smallest) / median of the ratios: repeat what spreads too far

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ratio of values `[rounds]` of both sides, all above 0, at least one round."""
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} rounds of one side and {len(theirs)} of the other cannot be paired")
    if min(*ours, *theirs) <= 0:
        raise ValueError(f"a ratio needs values above 0, not {min(*ours, *theirs)}")
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    outer = outer_rank(len(ratios))
    return Ratio(
        median=statistics.median(ratios),
        low=ratios[outer],
        high=ratios[-1 - outer],
        coverage=coverage(len(ratios), outer),
        ours=statistics.median(ours),
        theirs=statistics.median(theirs),
        spread=(ratios[-1] - ratios[0]) / statistics.median(ratios),
    )


def coverage(n: int, outer: int) -> float:
    """Chance that the median lies between the values of rank `outer` (from 0) from below and from above, of n."""
    return 1.0 - 2.0 * sum(math.comb(n, i) for i in range(outer + 1)) / 2.0**n


def outer_rank(n: int) -> int:
    """The narrowest interval that covers CONFIDENCE; the widest there is when none does."""
    return max((rank for rank in range((n + 1) // 2) if coverage(n, rank) >= CONFIDENCE), default=0)
