"""Finds the coefficients of the cost model from observations: damped least squares on log errors. Deterministic.

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
from server.planner.calibrate.observation import Observation

ROBUST_SCALE = 0.1
PRIOR_WEIGHT = 0.2  # of one unit of log distance from the start, in units of one observation
MAX_STEPS = 200
TOLERANCE = 1e-10

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
    """The coefficients with the least robust log error (Levenberg-Marquardt from their defaults)."""
    problem = Problem(observations)
    start = np.log(np.array(astuple(Coefficients())))
    point, damping = start, 1e-2
    residual = problem.residuals(point, start)
    for _ in range(MAX_STEPS):
        jacobian = _jacobian(problem, point, start, residual)
        normal, slope = jacobian.T @ jacobian, jacobian.T @ residual
        trial = point - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), slope)
        tried = problem.residuals(trial, start)
        gain = float(residual @ residual - tried @ tried)
        if gain <= 0:
            damping *= 8
            if damping > 1e8:
                break
            continue
        point, residual, damping = trial, tried, max(damping / 4, 1e-9)
        if gain < TOLERANCE:
            break
    return _coefficients(point)


def _jacobian(problem: Problem, point: Vector, start: Vector, residual: Vector) -> Vector:
    """Forward differences `[residuals, coefficients]`."""
    step = 1e-6
    columns = [(problem.residuals(point + step * unit, start) - residual) / step for unit in np.eye(len(point))]
    return np.stack(columns, axis=1)
