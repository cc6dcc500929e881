"""Fit of an endpoint with few unknowns: one factor on all decode terms, one on all prefill terms, and host seconds.

The four unknowns are linear in the observations and are found by least squares of relative errors. An unknown that the
observations do not determine keeps its value and gets a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...server.cost.calibration import Calibration
from ...server.cost.model import CostModel
from ...server.cost.work import Work
from ...server.errors import SettingsError
from .deployment import Deployment
from .observation import Observation

Vector = npt.NDArray[np.float64]

UNKNOWNS = ("decode_scale", "prefill_scale", "slot_s", "request_s")
SCALES, HOSTS = UNKNOWNS[:2], UNKNOWNS[2:]
BESIDE = {"prefill_scale": "request_s", "decode_scale": "slot_s"}  # an unknown that hides a scale is dropped first
NOISE = 0.01  # least relative error of a median: a few points may agree better by chance
LEAST_KNOWN = 0.25  # relative standard error beyond which a value is not determined
SINGULAR = 1e-7  # singular values below this share of the largest (1 to 2) are rounding errors
ALONE = 0.999  # leverage from which no other observation predicts this one


@dataclass(frozen=True, slots=True)
class Unknown:
    """Value of one of UNKNOWNS. If the observations do not give it, `standard_error` is None and `note` says why."""

    name: str
    value: float
    standard_error: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Residual:
    """An observation and its fitted time. `unseen_s` is the time by a fit without it; None if none is possible."""

    observation: Observation
    fitted_s: float
    unseen_s: float | None


@dataclass(frozen=True, slots=True)
class ObservedFit:
    """Fit of one endpoint over the calibration that it started from."""

    unknowns: tuple[Unknown, ...]  # in the order of UNKNOWNS
    residuals: tuple[Residual, ...]

    def value(self, name: str) -> float:
        return next(each.value for each in self.unknowns if each.name == name)


def decode_terms(cost: CostModel) -> frozenset[str]:
    """Return the terms of a decode step, including those that a prefill shares, such as the stream of weights."""
    return frozenset(cost.step_work.decode(1, 1))


def fit_endpoint(observed: Sequence[Observation], deployment: Deployment, calibration: Calibration) -> ObservedFit:
    """Fit the unknowns to the observations. Raises SettingsError if there are none."""
    if not observed:
        raise SettingsError("no figure of the reports is the time of a step: see the figures left out")
    cost, host = deployment.cost(calibration), calibration.host(deployment.stack.host)
    rows = np.array([_row(each, cost) for each in observed])
    fixed = np.array([_fixed(each, deployment, cost) for each in observed])
    measured = np.array([each.seconds for each in observed])
    start = np.array([1.0, 1.0, host.slot_s, host.request_s])
    problem = _Problem(rows / measured[:, None], 1 - fixed / measured, start)
    problem.solve()
    fitted = 1 - problem.residuals()
    unseen = problem.unseen()
    return ObservedFit(
        problem.unknowns(),
        tuple(
            Residual(each, float(ratio * each.seconds), None if other is None else other * each.seconds)
            for each, ratio, other in zip(observed, fitted, unseen, strict=True)
        ),
    )


def _row(observed: Observation, cost: CostModel) -> tuple[float, float, float, float]:
    """Return the seconds that one unit of each unknown adds to an observation."""
    if observed.phase == "decode":
        seconds, _ = _seconds(cost.step_work.decode(observed.slots, observed.positions), cost)
        return seconds, 0.0, observed.busy - 1, 0.0
    decode, prefill = _seconds(cost.step_work.prefill(observed.positions), cost)
    return decode, prefill, 0.0, 1.0


def _seconds(work: Work, cost: CostModel) -> tuple[float, float]:
    """Return the seconds of the terms of a decode step, and those of the others."""
    shared = decode_terms(cost)
    prices = {name: price * work.get(name, 0.0) for name, price in cost.calibration.coefficients.items()}
    own = sum(seconds for name, seconds in prices.items() if name in shared)
    return own, sum(prices.values()) - own


def _fixed(observed: Observation, deployment: Deployment, cost: CostModel) -> float:
    """Return the seconds that come from the calibration unchanged."""
    if observed.phase == "prefill":
        return 0.0
    host = cost.calibration.host(deployment.stack.host)
    return deployment.sampled_on_host_s(host, observed.busy, observed.slots)


class _Problem:
    """Linear problem: `matrix` [observations, unknowns] times the unknowns is `target`, in units of measured times."""

    def __init__(self, matrix: Vector, target: Vector, start: Vector) -> None:
        self._matrix, self._target, self._start, self._values = matrix, target, start, start.copy()
        self._free = [name for name, column in zip(UNKNOWNS, matrix.T, strict=True) if column.any()]
        self._errors: dict[str, float] = {}
        self._notes = {name: "nothing observed depends on it" for name in UNKNOWNS if name not in self._free}

    def solve(self) -> None:
        """Solve by least squares; drop undetermined unknowns one after the other."""
        while self._free:
            self._step()
            dropped = self._next_dropped()
            if dropped is None:
                return
            name, value, note = dropped
            self._free.remove(name)
            self._errors = {}
            self._notes[name] = note
            place = UNKNOWNS.index(name)
            self._values[place] = self._start[place] if value is None else value

    def residuals(self) -> Vector:
        """1 - fitted / measured."""
        return self._target - self._matrix @ self._values

    def unseen(self) -> list[float | None]:
        """Return fitted / measured by a fit to all other observations; None if these do not determine it."""
        matrix = self._columns
        leverage = np.einsum("ij,jk,ik->i", matrix, np.linalg.pinv(matrix.T @ matrix), matrix)
        residuals = self.residuals()
        return [
            None if own > ALONE or rest / (1 - own) >= 1 else float(1 - rest / (1 - own))
            for own, rest in zip(leverage, residuals, strict=True)
        ]

    def unknowns(self) -> tuple[Unknown, ...]:
        return tuple(
            Unknown(name, float(value), self._errors.get(name), self._notes.get(name, ""))
            for name, value in zip(UNKNOWNS, self._values, strict=True)
        )

    @property
    def _columns(self) -> Vector:
        return self._matrix[:, [UNKNOWNS.index(name) for name in self._free]]

    def _step(self) -> None:
        matrix, places = self._columns, [UNKNOWNS.index(name) for name in self._free]
        rest = self._values.copy()
        rest[places] = 0
        size = np.linalg.norm(matrix, axis=0)
        self._values[places] = (
            np.linalg.pinv(matrix / size, rcond=SINGULAR) @ (self._target - self._matrix @ rest) / size
        )
        surplus = len(self._target) - len(places)
        spread = np.sqrt(np.sum(self.residuals() ** 2) / surplus) if surplus > 0 else 0.0
        errors = max(NOISE, spread) * _spreads(matrix / size) / size
        self._errors = dict(zip(self._free, errors.tolist(), strict=True))

    def _next_dropped(self) -> tuple[str, float | None, str] | None:
        """Return the next unknown to drop, its value (None: the one at the start), and the note."""
        for name in self._free:
            if name in HOSTS and self._value(name) <= 0 and np.isfinite(self._errors[name]):
                return name, 0.0, "the observations leave nothing for it"
        for name in SCALES:
            if name in self._free and not self._is_known(name):
                partner = BESIDE[name]
                return self._kept(partner if partner in self._free else name)
        for name in HOSTS:
            if name in self._free and not self._is_known(name):
                return self._kept(name)
        return None

    def _kept(self, name: str) -> tuple[str, float | None, str]:
        return name, None, "the observations do not determine it"

    def _value(self, name: str) -> float:
        return float(self._values[UNKNOWNS.index(name)])

    def _is_known(self, name: str) -> bool:
        """Return whether an unknown is determined. Host seconds are compared with the longest step that has them."""
        error = self._errors[name]
        if name in SCALES:
            return self._value(name) > 0 and error <= LEAST_KNOWN * self._value(name)
        return bool(error * self._matrix[:, UNKNOWNS.index(name)].max() <= LEAST_KNOWN)


def _spreads(matrix: Vector) -> Vector:
    """Return the standard error of each unknown for a noise of 1; infinite if other unknowns can compensate it."""
    _, sizes, directions = np.linalg.svd(matrix)
    sizes = np.concatenate([sizes, np.zeros(len(directions) - len(sizes))])
    is_free = sizes <= SINGULAR * sizes[0]
    known = np.sqrt(np.sum((directions[~is_free] / sizes[~is_free, None]) ** 2, axis=0))
    return np.where(np.abs(directions[is_free]).sum(axis=0) > SINGULAR, np.inf, known)
