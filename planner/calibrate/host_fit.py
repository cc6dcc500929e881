"""Fit of the hosts of stacks, and of the clients, to load tests.

Logarithms of figures are taken as linear in the coefficients around a simulated point. A fit is then a least-squares
problem without negative unknowns, and can be repeated without each series. Deterministic.

How many hosts there are is chosen by series that a fit has not seen: none, one for all stacks, or one for each, pulled
towards each other. The simplest of nearly equal structures is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from itertools import combinations
from math import log

import numpy as np
from numpy.typing import NDArray

from ...server.config.formats import StackName
from ...server.cost.stacks import HostWork
from .fit import bounded_least_squares
from .load_generators import Clients
from .serving import ServingCoefficients, ServingRow

ROBUST_SCALE = 0.15  # log error beyond which an error counts as its size, not as its square
PULL = 0.1  # weight of a coefficient of 0, in units of a figure whose error is ROBUST_SCALE
TIE = 1.0  # weight of a difference between the hosts of two stacks, in the same units
MAX_ROUNDS = 8
WORTH = 0.01  # share by which a structure must predict unseen series better than a simpler one
WORST = 1.0  # largest error that counts in a score
FIT_WAVES = 2  # simulated waves of the eight; they are alike
MOVE = 0.5  # of a unit, by which a coefficient is moved to measure its effect
PASSES = 2  # the second starts where the first has ended

Vector = NDArray[np.float64]
Rows = NDArray[np.bool_]
Knob = tuple[str, str]  # a host or the clients, and the name of one coefficient
CLIENTS = "clients"
WITHOUT_HOST = ("spacing_s", "stop_rate")  # what clients do by themselves
UNITS = {each.name: getattr(Clients(), each.name) for each in fields(Clients)} | {
    "request_s": 0.05,
    "slot_s": 2e-4,
    "logit_s": 5e-9,
    "copy_s": 5e-9,
}


@dataclass(frozen=True, slots=True)
class Structure:
    """Hosts that have coefficients of their own. `tie`: weight of their differences; None: all are one."""

    name: str
    has_host: bool = True
    tie: float | None = None

    def unknowns(self, knobs: Sequence[Knob]) -> tuple[Vector, Vector]:
        """Return the share of each unknown in each knob, `[knobs, unknowns]`, and differences kept small."""
        keys: dict[Knob, int] = {}
        for owner, name in knobs:
            if self.has_host or name in WITHOUT_HOST:
                is_own = owner == CLIENTS or self.tie is not None
                keys.setdefault((owner if is_own else "", name), len(keys))
        spread = np.zeros((len(knobs), len(keys)))
        for row, (owner, name) in enumerate(knobs):
            column = keys.get((owner, name), keys.get(("", name)))
            if column is not None:
                spread[row, column] = 1.0
        pairs = [
            (one, other)
            for (a, one), (b, other) in combinations(keys.items(), 2)
            if self.tie and a[1] == b[1] and CLIENTS not in (a[0], b[0])
        ]
        ties = np.zeros((len(pairs), len(keys)))
        for row, (one, other) in enumerate(pairs):
            ties[row, one], ties[row, other] = self.tie or 0.0, -(self.tie or 0.0)
        return spread, ties


STRUCTURES = Structure("no host", has_host=False), Structure("one host"), Structure("a host for each stack", tie=TIE)


class Responses:
    """Figures of load tests around a simulated point: logarithms, and their change with each knob."""

    def __init__(self, rows: Sequence[ServingRow], point: ServingCoefficients) -> None:
        self.at, self.knobs = point, knobs_of(rows)
        self.point = np.array([value_of(point, knob) / UNITS[knob[1]] for knob in self.knobs])
        self.owners = np.array([i for i, row in enumerate(rows) for _ in row.fitted], dtype=np.int64)
        self.measured = np.array([log(value) for row in rows for value in row.fitted.values()])
        self.base = log_figures(rows, point)
        self.numbers = {series: number for number, series in enumerate(dict.fromkeys(row.series for row in rows))}
        self.series = np.array([self.numbers[rows[i].series] for i in self.owners], dtype=np.int64)
        self.names = np.array([name for row in rows for name in row.fitted], dtype=np.str_)
        self.slopes = np.zeros((len(self.base), len(self.knobs)))
        for column, knob in enumerate(self.knobs):
            moved = with_value(point, knob, value_of(point, knob) + MOVE * UNITS[knob[1]])
            own = [i for i, row in enumerate(rows) if row.used_coefficients(moved) != row.used_coefficients(point)]
            figures = np.isin(self.owners, own)
            self.slopes[figures, column] = (log_figures([rows[i] for i in own], moved) - self.base[figures]) / MOVE

    def under(self, rows: Sequence[ServingRow]) -> Responses:
        """Return the responses with the step times of `rows`, which are the same load tests; slopes are kept."""
        found = copy(self)
        found.base = log_figures(rows, self.at)
        return found

    def fit(self, structure: Structure, kept: Rows) -> Vector:
        """Return the knobs, in UNITS, of least loss over the `kept` figures."""
        spread, ties = structure.unknowns(self.knobs)
        size = spread.shape[1]
        matrix, target = self.slopes[kept] @ spread, (self.measured - self.base + self.slopes @ self.point)[kept]
        weights = np.bincount(self.series)[self.series[kept]] ** -0.25 / ROBUST_SCALE
        pull = PULL**2 * np.eye(size) + ties.T @ ties
        scale, found = weights, np.zeros(size)
        for _ in range(MAX_ROUNDS):
            scaled = matrix * scale[:, None]
            triangle = np.linalg.cholesky(scaled.T @ scaled + pull).T  # few unknowns, many rows
            found = bounded_least_squares(triangle, np.linalg.solve(triangle.T, scaled.T @ (target * scale)))
            errors = (matrix @ found - target) / ROBUST_SCALE
            scale = weights * (1 + errors**2) ** -0.25
        return np.asarray(spread @ found)

    def errors(self, values: Vector, rows: Rows) -> Vector:
        """Return the logarithms of predicted over measured figures."""
        return np.asarray(self.base[rows] + self.slopes[rows] @ (values - self.point) - self.measured[rows])

    def choose(self, kept: Rows) -> Structure:
        """Return the simplest structure that predicts left-out series of the `kept` figures about best."""
        best, least = STRUCTURES[0], self._score(STRUCTURES[0], kept)
        for structure in STRUCTURES[1:]:
            score = self._score(structure, kept)
            if score < least * (1 - WORTH):
                best, least = structure, score
        return best

    def _score(self, structure: Structure, kept: Rows) -> float:
        """Return the mean over series of their mean relative error, each by a fit to the others."""
        scores = []
        for number in np.unique(self.series[kept]):
            own = kept & (self.series == number)
            others = kept & ~own
            if others.any():
                errors = self.errors(self.fit(structure, others), own)
                scores.append(np.minimum(np.abs(np.expm1(np.minimum(errors, 1.0))), WORST).mean())
        return float(np.mean(scores)) if scores else 0.0

    def coefficients(self, values: Vector) -> ServingCoefficients:
        """Return the knobs as coefficients. Clients stay above 0."""
        found = ServingCoefficients()
        for knob, value in zip(self.knobs, values, strict=True):
            least = 1e-3 if knob[0] == CLIENTS else 0.0
            found = with_value(found, knob, max(float(value), least) * UNITS[knob[1]])
        return found


@dataclass(frozen=True, slots=True)
class HostFit:
    """Coefficients with the structure that was chosen, and the responses around them."""

    coefficients: ServingCoefficients
    structure: Structure
    responses: Responses | None  # None without rows


def fit_hosts(rows: Sequence[ServingRow]) -> HostFit:
    """Return a fit to all `rows`; no host without rows."""
    start = ServingCoefficients()
    for knob in knobs_of(rows):
        start = with_value(start, knob, UNITS[knob[1]])
    found = HostFit(start, STRUCTURES[0], None)
    for _ in range(PASSES if rows else 0):
        responses = Responses(rows, found.coefficients)
        every = np.ones(len(responses.base), dtype=np.bool_)
        structure = responses.choose(every)
        found = HostFit(responses.coefficients(responses.fit(structure, every)), structure, responses)
    return found


def knobs_of(rows: Sequence[ServingRow]) -> tuple[Knob, ...]:
    """Return the coefficients of the hosts of `rows`, and of clients."""
    hosts = sorted({row.stack.host for row in rows})
    own = [(host, each.name) for host in hosts for each in fields(HostWork)]
    return (*own, *((CLIENTS, each.name) for each in fields(Clients)))


def log_figures(rows: Sequence[ServingRow], coefficients: ServingCoefficients) -> Vector:
    """Return the logarithms of the fitted figures of `rows`, simulated."""
    found = []
    for row in rows:
        figures = row.figures(coefficients, FIT_WAVES)
        found += [log(figures[name]) for name in row.fitted]
    return np.array(found)


def value_of(coefficients: ServingCoefficients, knob: Knob) -> float:
    """Return one coefficient."""
    owner, name = knob
    holder = coefficients.clients if owner == CLIENTS else coefficients.host(owner)  # type: ignore[arg-type]
    return float(getattr(holder, name))


def with_value(coefficients: ServingCoefficients, knob: Knob, value: float) -> ServingCoefficients:
    """Return `coefficients` with one value changed."""
    owner, name = knob
    if owner == CLIENTS:
        return replace(coefficients, clients=replace(coefficients.clients, **{name: value}))
    stack: StackName = owner  # type: ignore[assignment]
    host = replace(coefficients.host(stack), **{name: value})
    return replace(coefficients, hosts={**coefficients.hosts, stack: host})
