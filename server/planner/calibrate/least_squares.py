"""Finds the coefficients of the cost model from observations: least squares on log errors. Deterministic.

Errors are relative (log of predicted over measured) and robust (pseudo-Huber: quadratic to 10 %, linear beyond). A weak
pull towards the coefficients' physical starting points decides those that the data do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, fields

import numpy as np
from numpy.typing import NDArray

from server.cost.calibration import Coefficients
from server.cost.work import COMPUTE, LINKS, MEMORY, OVERHEAD, prices
from server.errors import SettingsError
from server.planner.calibrate.observation import Observation

ROBUST_SCALE = 0.1
PRIOR_WEIGHT = 0.2  # of one unit of log distance from the start, in units of one observation
TOLERANCE = 1e-12  # relative, of the loss, the coefficients' logs and the slope

Vector = NDArray[np.float64]


class Problem:
    """Observations as arrays: work `[rows, terms]`, measured seconds and weights `[rows]`."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self.decode = np.array([o.decode for o in observations], dtype=np.float64)
        self.prefill = np.array([o.prefill for o in observations], dtype=np.float64)
        self.seconds = np.array([o.seconds for o in observations], dtype=np.float64)
        repeats = Counter(o.series for o in observations)
        self.weights = np.array([repeats[o.series] ** -0.5 for o in observations], dtype=np.float64)

    def predict(self, coefficients: Coefficients) -> Vector:
        """Seconds of every observation."""
        price = np.array(prices(coefficients))
        return _elapsed(self.decode, price) + _elapsed(self.prefill, price)

    def residuals(self, point: Vector, start: Vector) -> Vector:
        """Weighted robust log errors, and the pull to `start`; both in logs of the coefficients."""
        error = np.log(self.predict(_coefficients(point)) / self.seconds) * self.weights
        robust = np.sign(error) * ROBUST_SCALE * np.sqrt(2 * (np.sqrt(1 + (error / ROBUST_SCALE) ** 2) - 1))
        return np.concatenate([robust, PRIOR_WEIGHT * (point - start)])


def _elapsed(work: Vector, price: Vector) -> Vector:
    cost = work * price
    overlapped = np.maximum(cost[:, COMPUTE].sum(axis=1), cost[:, MEMORY].sum(axis=1))
    return np.asarray(overlapped + cost[:, LINKS].sum(axis=1) + cost[:, OVERHEAD].sum(axis=1))


def _coefficients(point: Vector) -> Coefficients:
    values = dict(zip((f.name for f in fields(Coefficients)), np.exp(point).tolist(), strict=True))
    return Coefficients(**values)


def fit(observations: Sequence[Observation]) -> Coefficients:
    """The coefficients with the least robust log error (Levenberg-Marquardt from their defaults).

    Raises SettingsError when scipy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise SettingsError("fitting needs scipy, which is not installed: install neuronserve[calibrate]") from error
    problem = Problem(observations)
    start = np.log(np.array(astuple(Coefficients())))
    tolerances = dict.fromkeys(("ftol", "xtol", "gtol"), TOLERANCE)
    found = least_squares(problem.residuals, start, method="lm", args=(start,), **tolerances)
    return _coefficients(found.x)
