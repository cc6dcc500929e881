"""Fit of the cost model's coefficients to observations: robust, reweighted least squares. Deterministic.

A predicted time is a sum of (work x coefficient), so each round is a linear problem without negative unknowns. Errors
are relative to the measurement and weighted as their logarithms (pseudo-Huber: quadratic to 10 %, linear beyond). The
loss lies between that of relative errors, which the reports state, and that of their logarithms. A weak pull towards
the terms' starting values decides coefficients that no row determines.

Rows of one series (source, release and model) share one unknown error, drawn with the variance SERIES_VARIANCE: a
random effect. A sweep of many rows then counts as little more than one measurement of what its rows have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...server.cost.terms import TERMS
from ...server.errors import SettingsError
from .observation import Observation

ROBUST_SCALE = 0.1
SERIES_VARIANCE = 2.0  # of the error that rows of a series share, over that of a row
PULL = 0.02  # weight of a starting value, in units of an observation with an error of 100 %
MAX_ROUNDS, TOLERANCE = 12, 1e-3

Vector = NDArray[np.float64]
NAMES = tuple(TERMS)
START = np.array([term.start for term in TERMS.values()])
LEAST = np.array([term.least for term in TERMS.values()])
FIXED = tuple(i for i, term in enumerate(TERMS.values()) if not term.is_optional)
OPTIONAL = tuple(i for i, term in enumerate(TERMS.values()) if term.is_optional)


class Problem:
    """Observations as arrays: work `[rows, terms]`, measured seconds, weights and number of the series `[rows]`."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self.work = np.array([[o.work.get(name, 0.0) for name in NAMES] for o in observations], dtype=np.float64)
        self.seconds = np.array([o.seconds for o in observations], dtype=np.float64)
        repeats = Counter(o.setup for o in observations)
        self.weights = np.array([repeats[o.setup] ** -0.5 for o in observations], dtype=np.float64)
        numbers = {
            key: number for number, key in enumerate(dict.fromkeys((o.point.phase, o.series) for o in observations))
        }
        self.series = np.array([numbers[o.point.phase, o.series] for o in observations])

    def fit(self, terms: Sequence[int], rows: NDArray[np.bool_], held: Sequence[int] = ()) -> Vector:
        """Return coefficients `[terms]`, by index into NAMES, with the least loss over `rows`; 0 for other terms.

        `held`: terms that stay at their start. Raises SettingsError if scipy is not installed.
        """
        used = np.array([term for term in terms if term not in held])
        order = np.flatnonzero(rows)
        order = order[np.argsort(self.series[order], kind="stable")]
        shares = self.work[order] * START / self.seconds[order, None]  # in units of the starting values
        work, known = shares[:, used], shares[:, list(held)].sum(axis=1)
        least, series = LEAST[used] / START[used], self.series[order]
        scale = weights = self.weights[order]
        for _ in range(MAX_ROUNDS):
            matrix = _without_series(np.column_stack((work, 1 - known)) * scale[:, None], scale, series)
            found = _least_squares(matrix[:, :-1], matrix[:, -1], least)
            last, scale = scale, weights * _reweighted(work @ found + known)
            if np.allclose(last, scale, rtol=TOLERANCE):
                break
        coefficients = np.zeros(len(NAMES))
        coefficients[used] = found * START[used]
        coefficients[list(held)] = START[list(held)]
        return coefficients

    def errors(self, coefficients: Vector, rows: NDArray[np.bool_]) -> Vector:
        """Return the relative error of the prediction of each of `rows`."""
        return np.asarray(self.work[rows] @ coefficients / self.seconds[rows] - 1)


def _without_series(matrix: Vector, scale: Vector, series: NDArray[np.int64]) -> Vector:
    """Return the scaled rows of `matrix`, whitened: the error that rows of a series share is mostly taken out.

    `series` are the rows' numbers, in ascending order.
    """
    starts = np.flatnonzero(np.diff(series, prepend=-1))
    size = np.add.reduceat(scale**2, starts)
    factor = (1 - 1 / np.sqrt(1 + SERIES_VARIANCE * size)) / size
    shared = np.add.reduceat(matrix * scale[:, None], starts) * factor[:, None]
    return matrix - scale[:, None] * np.repeat(shared, np.diff(starts, append=len(series)), axis=0)


def bounded_least_squares(matrix: NDArray[np.floating[Any]], target: NDArray[np.floating[Any]]) -> Vector:
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
    right = np.linalg.solve(triangle.T, matrix.T @ (target - matrix @ least) + pull * (1 - least))
    return least + bounded_least_squares(np.asarray(triangle, np.float64), np.asarray(right, np.float64))


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
