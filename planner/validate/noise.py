"""How far published times of one setup differ from each other: no model of steps can be more accurate than this."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import mean, median

import numpy as np

from ..calibrate.comparison import Figure, phase_of

MONTHS = "months of one series"
RELEASES = "releases of one source"  # or names that it gives to one model
SOURCES = "sources"


@dataclass(frozen=True, slots=True)
class Spread:
    """Differences between published figures of one setup: the greater over the smaller, minus one."""

    between: str
    phase: str
    pairs: int
    mean: float
    median: float
    largest: float

    @property
    def least_error(self) -> float:
        """Mean error on both of a pair that the best prediction between them still has."""
        return sqrt(1 + self.mean) - 1


@dataclass(frozen=True, slots=True)
class Scatter:
    """Errors that are left within series when each series has a constant factor of its own."""

    phase: str
    series: int
    rows: int
    error: float  # mean of the sizes


def spreads(figures: Sequence[Figure]) -> list[Spread]:
    """Return the differences between sweeps of one setup, by relation and phase; only where there are pairs."""
    found: dict[tuple[str, str], list[float]] = {}
    for own in _grouped(figures, lambda each: each.setup).values():
        sweeps = _grouped(own, lambda each: (each.series, each.month))
        for one, other in combinations(sweeps.values(), 2):
            key = _relation(one[0], other[0]), phase_of(own[0].group)
            apart = median(each.measured for each in one) / median(each.measured for each in other)
            found.setdefault(key, []).append(max(apart, 1 / apart) - 1)
    return [
        Spread(between, phase, len(values), mean(values), median(values), max(values))
        for (between, phase), values in sorted(found.items())
    ]


def _relation(one: Figure, other: Figure) -> str:
    """Return how two sweeps of one setup are related."""
    if one.source != other.source:
        return SOURCES
    return MONTHS if one.series == other.series else RELEASES


def scatters(figures: Sequence[Figure]) -> list[Scatter]:
    """Return the errors left within series of at least two rows, by phase."""
    found: dict[str, list[list[float]]] = {}
    for own in _grouped(figures, lambda each: (phase_of(each.group), each.series)).values():
        if len(own) > 1:
            ratios = np.array([each.predicted / each.measured for each in own])
            left = np.abs(ratios / np.median(ratios) - 1)
            found.setdefault(phase_of(own[0].group), []).append(left.tolist())
    return [
        Scatter(phase, len(series), sum(map(len, series)), mean(error for own in series for error in own))
        for phase, series in sorted(found.items())
    ]


def _grouped(figures: Iterable[Figure], key: Callable[[Figure], Hashable]) -> dict[Hashable, list[Figure]]:
    groups: dict[Hashable, list[Figure]] = {}
    for each in figures:
        groups.setdefault(key(each), []).append(each)
    return groups
