"""Fit of the host coefficients of serving stacks to load tests: a pattern search, as a simulation has no gradient.

The loss is that of Cauchy's distribution, log(1 + (error / 0.15)^2), of logs of predicted over measured, so a series
that contradicts the others changes the fit little. Deterministic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from math import isfinite, log, log1p

from ...server.cost.stacks import HostWork
from .load_generators import Clients
from .serving import QUANTITIES, ServingCoefficients, ServingFigures, ServingRow

SCALE = 0.15
FACTORS = (1.6, 1.2)  # steps of the search, from coarse to fine
FIT_WAVES = 2  # simulated waves of the eight; they are alike
PRIOR_WEIGHT = 0.2  # of a squared unit of log distance from the start
MISSED = 5.0  # log error of a figure that a simulation lacks

Knob = tuple[str, str]  # a stack, or the clients, and the name of one of its coefficients
CLIENTS = "clients"


class _Objective:
    """Loss of coefficients over rows. A row is simulated again only when a coefficient that it depends on changes."""

    def __init__(self, rows: Sequence[ServingRow]) -> None:
        self._rows = rows
        self._start = ServingCoefficients()
        self._figures: dict[tuple[object, ...], ServingFigures] = {}

    def loss(self, coefficients: ServingCoefficients) -> float:
        total = sum(self._row_loss(row, coefficients) for row in self._rows)
        for knob in knobs(coefficients):
            distance = log(value_of(coefficients, knob) / value_of(self._start, knob))
            total += PRIOR_WEIGHT * distance**2
        return total

    def _row_loss(self, row: ServingRow, coefficients: ServingCoefficients) -> float:
        key = (row.row.row_id, *row.used_coefficients(coefficients))
        if key not in self._figures:
            self._figures[key] = row.predict(coefficients, FIT_WAVES)
        figures = dict(zip(QUANTITIES, self._figures[key], strict=True))
        losses = [_loss(figures[name], value) for name, value in row.measured.items()]
        return sum(losses) / len(losses)


def _loss(predicted: float, measured: float) -> float:
    error = log(predicted / measured) if predicted > 0 and isfinite(predicted) else MISSED
    return log1p((error / SCALE) ** 2)


def knobs(coefficients: ServingCoefficients) -> Iterator[Knob]:
    """Yield all coefficients above 0; a coefficient of 0 does not apply to the stack."""
    for name, host in coefficients.hosts.items():
        yield from ((name, each.name) for each in fields(HostWork) if getattr(host, each.name))
    yield from ((CLIENTS, each.name) for each in fields(Clients))


def value_of(coefficients: ServingCoefficients, knob: Knob) -> float:
    owner, name = knob
    holder = coefficients.clients if owner == CLIENTS else coefficients.hosts[owner]  # type: ignore[index]
    return float(getattr(holder, name))


def with_value(coefficients: ServingCoefficients, knob: Knob, value: float) -> ServingCoefficients:
    """Return `coefficients` with one value changed."""
    owner, name = knob
    if owner == CLIENTS:
        return replace(coefficients, clients=replace(coefficients.clients, **{name: value}))
    hosts = {
        stack: replace(host, **{name: value}) if stack == owner else host for stack, host in coefficients.hosts.items()
    }
    return replace(coefficients, hosts=hosts)


def fit_serving(rows: Sequence[ServingRow]) -> ServingCoefficients:
    """Return the coefficients of least loss, searched from the defaults; the defaults without rows."""
    best = ServingCoefficients()
    if not rows:
        return best
    objective = _Objective(rows)
    least = objective.loss(best)
    for factor in FACTORS:
        for knob in knobs(best):
            best, least = _along(objective, best, least, knob, factor)
    return best


def _along(
    objective: _Objective, best: ServingCoefficients, least: float, knob: Knob, factor: float
) -> tuple[ServingCoefficients, float]:
    """Move one coefficient up or down as long as the loss falls."""
    for step in (factor, 1 / factor):
        is_better = False
        while True:
            trial = with_value(best, knob, value_of(best, knob) * step)
            loss = objective.loss(trial)
            if loss >= least:
                break
            best, least, is_better = trial, loss, True
        if is_better:
            break
    return best, least
