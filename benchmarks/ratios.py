"""Ratios of paired measurements, with intervals that assume no distribution of the values.

Round i measures both sides one after the other, so that slow drift of the machine cancels in the round's ratio. The
report has the median of the ratios, with an interval between two ranks of them. It holds the true median unless too
many rounds fall on one side, whose chance is that of coin tosses (Conover, "Practical Nonparametric Statistics", 3rd
edition, section 3.2).
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
    spread: float  # (largest - smallest) / median of the ratios; if it is large, repeat the comparison

    def as_json(self) -> dict[str, float]:
        return asdict(self)


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of values `[rounds]` of both sides, all above 0, at least one round."""
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
    """Return the chance that the median of n values lies between rank `outer` (from 0) and its mirror from above."""
    return 1.0 - 2.0 * sum(math.comb(n, i) for i in range(outer + 1)) / 2.0**n


def outer_rank(n: int) -> int:
    """Return the rank of the narrowest interval that covers CONFIDENCE, or of the widest if none does."""
    return max((rank for rank in range((n + 1) // 2) if coverage(n, rank) >= CONFIDENCE), default=0)
