"""Intervals of prediction from few independent series of errors."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, hypot, log
from statistics import mean, stdev

ALONE = log(2)  # log of the factor on both sides of 1 that a single series, which has no spread, stands for
T90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415)  # 90th percentile of Student's t with 1, 2, ... degrees


def interval(errors: Iterable[float]) -> tuple[float, float]:
    """Return the logs between which eight of ten errors of further series are expected; 0 lies between them.

    `errors` are logs of measured over predicted, one for each series. Prediction interval of a normal distribution:
    mean -+ t s sqrt(1 + 1/n) for n series.
    """
    known = list(errors)
    if len(known) < 2:
        return min([0.0, *known]) - ALONE, max([0.0, *known]) + ALONE
    reach = T90[min(len(known) - 1, len(T90)) - 1] * stdev(known) * (1 + 1 / len(known)) ** 0.5
    return min(0.0, mean(known) - reach), max(0.0, mean(known) + reach)


def both(factor: float, logarithm: float) -> float:
    """Return the limit of a product of two independent factors, on the side of `logarithm`.

    `factor` is the limit of the one, `logarithm` the log of that of the other.
    """
    reach = hypot(log(factor), logarithm)
    return exp(reach if logarithm > 0 else -reach)
