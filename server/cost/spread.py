"""Intervals of prediction from few independent series of errors."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, hypot, log
from statistics import mean, stdev

ALONE = log(2)  # log of the factor on both sides of 1 that a single series, which has no spread, stands for
NORMAL_P90 = 1.2816
# 90th percentile of Student's t with 1, 2, ... degrees of freedom; then nearly NORMAL_P90 + 0.85 / degrees.
STUDENT_P90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)

# 97.5th percentile with 1, 2, ... degrees; then nearly Abramowitz and Stegun 26.7.5 (0.1 % from the eleventh on).
STUDENT_P975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def student_p975(degrees: int) -> float:
    """Return the 97.5th percentile of Student's t, the half width of an interval of 95 %."""
    if degrees <= len(STUDENT_P975):
        return STUDENT_P975[degrees - 1]
    return 1.9600 + 2.3723 / degrees + 2.8225 / degrees**2


def student_p90(degrees: float) -> float:
    """Return the 90th percentile of Student's t, interpolated between whole degrees of freedom; of at least one."""
    if degrees >= len(STUDENT_P90):
        return NORMAL_P90 + 0.85 / degrees
    low = max(1, int(degrees))
    part = max(0.0, degrees - low)
    return STUDENT_P90[low - 1] * (1 - part) + STUDENT_P90[low] * part


def interval(errors: Iterable[float]) -> tuple[float, float]:
    """Return the logs between which eight of ten errors of further series are expected; 0 lies between them.

    `errors` are logs of measured over predicted, one for each series. Prediction interval of a normal distribution:
    mean -+ t s sqrt(1 + 1/n) for n series.
    """
    known = list(errors)
    if len(known) < 2:
        return min([0.0, *known]) - ALONE, max([0.0, *known]) + ALONE
    reach = student_p90(len(known) - 1) * stdev(known) * (1 + 1 / len(known)) ** 0.5
    return min(0.0, mean(known) - reach), max(0.0, mean(known) + reach)


def both(factor: float, logarithm: float) -> float:
    """Return the limit of a product of two independent factors, on the side of `logarithm`.

    `factor` is the limit of the one, `logarithm` the log of that of the other.
    """
    reach = hypot(log(factor), logarithm)
    return exp(reach if logarithm > 0 else -reach)
