"""Fit of the cost model's coefficients to observations: robust, reweighted least squares. Deterministic.

A predicted time is a sum of (work x coefficient), so each round is a linear problem without negative unknowns. Errors
are relative to the measurement and weighted as their logarithms (pseudo-Huber: quadratic to 10 %, linear beyond). The
loss lies between that of relative errors, which the reports state, and that of their logarithms. A weak pull towards
the terms' starting values decides coefficients that no row determines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...server.cost.terms import TERMS
from ...server.errors import SettingsError
from .observation import Observation

ROBUST_SCALE = 0.1
PULL = 0.1  # weight of a starting value, in units of an observation with an error of 100 %
MAX_ROUNDS, TOLERANCE = 20, 1e-3

Vector = NDArray[np.float64]
NAMES = tuple(TERMS)
START = np.array([term.start for term in TERMS.values()])
LEAST = np.array([term.least for term in TERMS.values()])
FIXED = tuple(i for i, term in enumerate(TERMS.values()) if not term.is_optional)
OPTIONAL = tuple(i for i, term in enumerate(TERMS.values()) if term.is_optional)


class Problem:
    """Observations as arrays: work `[rows, terms]`, measured seconds and weights `[rows]`."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self.work = np.array([[o.work.get(name, 0.0) for name in NAMES] for o in observations], dtype=np.float64)
        self.seconds = np.array([o.seconds for o in observations], dtype=np.float64)
        repeats = Counter(o.series for o in observations)
        self.weights = np.array([repeats[o.series] ** -0.5 for o in observations], dtype=np.float64)

    def fit(self, terms: Sequence[int], rows: NDArray[np.bool_]) -> Vector:
        """Return coefficients `[terms]`, by index into NAMES, with the least loss over `rows`; 0 for other terms.

        Raises SettingsError if scipy is not installed.
        """
        used = np.array(terms)
        work = self.work[np.ix_(rows, used)] * START[used] / self.seconds[rows, None]  # in units of the starting value
        weights, least = self.weights[rows], LEAST[used] / START[used]
        scale = weights
        for _ in range(MAX_ROUNDS):
            found = _least_squares(work * scale[:, None], scale, least)
            last, scale = scale, weights * _reweighted(work @ found)
            if np.allclose(last, scale, rtol=TOLERANCE):
                break
        coefficients = np.zeros(len(NAMES))
        coefficients[used] = found * START[used]
        return coefficients

    def errors(self, coefficients: Vector, rows: NDArray[np.bool_]) -> Vector:
        """Return the relative error of the prediction of each of `rows`."""
        return np.asarray(self.work[rows] @ coefficients / self.seconds[rows] - 1)


def bounded_least_squares(matrix: Vector, target: Vector) -> Vector:
    """Return unknowns of at least 0 that bring matrix @ x nearest to `target`."""
    try:
        from scipy.optimize import nnls
    except ImportError as error:
        raise SettingsError("fitting needs scipy, which is not installed: install neuronserve[calibrate]") from error
    return np.asarray(nnls(matrix, target)[0])


def _least_squares(matrix: Vector, target: Vector, least: Vector) -> Vector:
    """Return unknowns of at least `least` that bring matrix @ x nearest to `target`, pulled towards 1."""
    pull = PULL**2
    triangle = np.linalg.cholesky(matrix.T @ matrix + pull * np.eye(len(least))).T  # few unknowns, many rows
    right = matrix.T @ (target - matrix @ least) + pull * (1 - least)
    return np.asarray(least + bounded_least_squares(triangle, np.asarray(np.linalg.solve(triangle.T, right))))


def _reweighted(ratio: Vector) -> Vector:
    """Return weights that make relative errors count as robust log errors; `ratio` is predicted over measured."""
    logs, relative = np.log(np.maximum(ratio, 1e-9)), ratio - 1
    close = np.abs(relative) < 1e-9
    bent = np.where(close, 1.0, logs / np.where(close, 1.0, relative))
    return np.asarray(np.clip(bent, 0.3, 3.0) / (1 + (logs / ROBUST_SCALE) ** 2) ** 0.25)


def as_coefficients(values: Vector) -> dict[str, float]:
    """Return coefficients by name: those above 0, and all that are not optional."""
    return {
        name: float(value)
        for name, value in zip(NAMES, values, strict=True)
        if value > 0 or not TERMS[name].is_optional
    }


def as_vector(coefficients: dict[str, float]) -> Vector:
    """The inverse of `as_coefficients`."""
    return np.array([coefficients.get(name, 0.0) for name in NAMES])
