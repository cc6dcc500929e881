"""Errors and coverage of some figures: by row, by configuration and by series, with bootstrap intervals.

Rows of one series err together, so statistics by row flatter. The intervals therefore resample whole series.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...server.cost.calibration import ErrorStats
from ...server.cost.evidence import Band
from .comparison import Figure
from .fit import Vector
from .step_errors import stats_of

RESAMPLES, SEED = 2000, 31
INTERVAL = (0.05, 0.95)  # quantiles of the resampled means

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The error of a prediction of `num_rows` alike rows, relative to the measurement."""

    series: str
    setup: Hashable
    error: float
    band: Band | None
    num_rows: int = 1


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of measurements within the bands of their predictions."""

    rows: float
    configurations: float  # whose median is within
    series: float  # mean over series of the share of rows
    interval: Interval | None  # 90 % interval of `rows`; None with one series


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of some figures. Statistics by configuration or series are of each one's mean error."""

    rows: int
    configurations: int
    series: int
    by_row: ErrorStats
    by_configuration: ErrorStats
    by_series: ErrorStats
    row_interval: Interval | None  # 90 % interval of the mean by row; None with one series
    series_interval: Interval | None  # the same of the mean by series
    within: Coverage | None  # None where figures have no bands


def outcomes(figures: Iterable[Figure]) -> list[Outcome]:
    """Return the errors of figures, without what is only for people to read."""
    return [Outcome(each.series, each.setup, each.error, each.band) for each in figures]


def accuracy_of(found: Sequence[Outcome]) -> Accuracy | None:
    """Return statistics of the errors; None if there are no figures."""
    if not found:
        return None
    sizes, means = _by_series(found, [abs(each.error) for each in found])
    own_setups = _grouped(found, [(each.series, each.setup) for each in found])
    return Accuracy(
        rows=int(sizes.sum()),
        configurations=len(own_setups),
        series=len(sizes),
        by_row=stats_of(np.repeat([each.error for each in found], [each.num_rows for each in found])),
        by_configuration=_of_means(own_setups),
        by_series=_of_means(_grouped(found, [each.series for each in found])),
        row_interval=_interval(sizes, means, by_row=True),
        series_interval=_interval(sizes, means, by_row=False),
        within=coverage_of(found),
    )


def coverage_of(found: Sequence[Outcome]) -> Coverage | None:
    """Return the shares of measurements within their bands; None if no figure has one."""
    held = [each for each in found if each.band is not None]
    if not held:
        return None
    sizes, shares = _by_series(held, [float(_is_within(each)) for each in held])
    setups = _grouped(held, [(each.series, each.setup) for each in held])
    return Coverage(
        rows=float(sizes @ shares / sizes.sum()),
        configurations=float(np.mean([_is_median_within(own) for own in setups])),
        series=float(shares.mean()),
        interval=_interval(sizes, shares, by_row=True),
    )


def _is_within(outcome: Outcome, error: float | None = None) -> bool:
    ratio = 1 / (1 + (outcome.error if error is None else error))
    return outcome.band is not None and outcome.band.low <= ratio <= outcome.band.high


def _is_median_within(own: Sequence[Outcome]) -> bool:
    return _is_within(own[0], float(np.median([each.error for each in own])))


def _grouped(found: Sequence[Outcome], keys: Sequence[Hashable]) -> list[list[Outcome]]:
    groups: dict[Hashable, list[Outcome]] = {}
    for each, key in zip(found, keys, strict=True):
        groups.setdefault(key, []).append(each)
    return list(groups.values())


def _of_means(groups: Sequence[Sequence[Outcome]]) -> ErrorStats:
    sizes = np.array([_mean([abs(each.error) for each in own], own) for own in groups])
    biases = [float(np.median([each.error for each in own])) for own in groups]
    return ErrorStats(
        float(sizes.mean()), float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(np.median(biases))
    )


def _mean(values: Sequence[float], own: Sequence[Outcome]) -> float:
    return float(np.average(values, weights=[each.num_rows for each in own]))


def _by_series(found: Sequence[Outcome], values: Sequence[float]) -> tuple[Vector, Vector]:
    """Return the number of rows of each series, and the mean of its values."""
    sizes: dict[str, int] = {}
    sums: dict[str, float] = {}
    for each, value in zip(found, values, strict=True):
        sizes[each.series] = sizes.get(each.series, 0) + each.num_rows
        sums[each.series] = sums.get(each.series, 0.0) + value * each.num_rows
    counts = np.array(list(sizes.values()), dtype=np.float64)
    return counts, np.array(list(sums.values())) / counts


def _interval(sizes: Vector, means: Vector, by_row: bool) -> Interval | None:
    """Return the interval of the mean over rows or over series, when series are drawn again with replacement."""
    if len(sizes) < 2:
        return None
    drawn = np.random.default_rng(SEED).integers(0, len(sizes), (RESAMPLES, len(sizes)))
    weights = sizes[drawn] if by_row else np.ones(drawn.shape)
    found = (weights * means[drawn]).sum(axis=1) / weights.sum(axis=1)
    low, high = np.quantile(found, INTERVAL)
    return float(low), float(high)
