"""`neuronserve calibrate`: fit the cost model to published rows, or check the stored fit, and report the errors.

A check never fits. Errors are (predicted - measured) / measured; group figures are of their absolute values.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server.cost.calibration import (
    Calibration,
    Coefficients,
    ErrorStats,
    GroupError,
    Seen,
    default_calibration,
)
from server.cost.shape import matrix_params
from server.errors import SettingsError
from server.planner.calibrate.least_squares import Problem, fit
from server.planner.calibrate.observation import Observation, observe
from server.planner.calibrate.published import PublishedRow, data_hash, read_rows
from server.planner.calibrate.serving_errors import ServingError, ServingOutcome, calibrate_serving, check_serving


@dataclass(frozen=True, slots=True)
class RowError:
    """A compared time. `left_out` is the error of a fit that never saw the row's model; None in a check."""

    row_id: str
    group: str
    model: str
    measured_ms: float
    predicted_ms: float
    error: float
    left_out: float | None = None


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """The outcome of a fit or of a check."""

    calibration: Calibration
    is_fit: bool
    groups: dict[str, GroupError]
    rows: tuple[RowError, ...]
    serving: tuple[ServingError, ...]  # of load tests: up to three figures a row
    skipped: tuple[tuple[str, str], ...]  # row and reason; a row gives one or two observations or reasons

    def as_json(self) -> dict[str, Any]:
        """Plain values: `groups` by name with n, mean, median, p90; every row; what was skipped and why."""
        return {
            "calibration": self.calibration.as_dict(),
            "is_fit": self.is_fit,
            "groups": {name: group.as_dict() for name, group in self.groups.items()},
            "rows": [asdict(row) for row in self.rows],
            "serving": [asdict(row) for row in self.serving],
            "skipped": [{"row_id": row_id, "reason": reason} for row_id, reason in self.skipped],
        }


def run_calibrate(data: Path, date: str | None = None) -> CalibrationReport:
    """Fit all coefficients to the usable rows of `data`, and each model's rows again without that model.

    `date` (ISO) is stored with the fit; today when not given. Raises SettingsError when the file cannot be read as
    such a table or no row is usable.
    """
    rows = read_rows(data)
    observations, skipped = _usable(rows, data)
    coefficients = fit(observations)
    errors, left_out = errors_of(coefficients, observations), _left_out(observations)
    calibration = Calibration(
        coefficients=coefficients,
        date=date or datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        data_sha256=data_hash(data),
        num_rows=len({o.row_id for o in observations}),
        errors=_groups(observations, errors, left_out),
        seen=Seen.of({(matrix_params(o.shape), o.shape.hidden_size) for o in observations if not o.shape.num_experts}),
    )
    served = calibrate_serving(rows, calibration)
    groups = calibration.errors | serving_groups(served.errors)
    calibration = replace(calibration, errors=groups, serving=served.coefficients)
    return _report(calibration, True, groups, _rows(observations, errors, left_out), (served, skipped))


def run_check(data: Path, calibration: Calibration | None = None) -> CalibrationReport:
    """Apply a stored calibration (the shipped one by default) to the usable rows of `data`. Fits nothing.

    Raises SettingsError when the file cannot be read as such a table or no row is usable.
    """
    calibration = calibration or default_calibration()
    rows = read_rows(data)
    served = check_serving(rows, calibration)
    observations, skipped = _usable(rows, data, is_enough=bool(served.errors))
    errors = errors_of(calibration.coefficients, observations)
    groups = _groups(observations, errors, None) | serving_groups(served.errors)
    return _report(calibration, False, groups, _rows(observations, errors, None), (served, skipped))


def _report(
    calibration: Calibration,
    is_fit: bool,
    groups: dict[str, GroupError],
    rows: tuple[RowError, ...],
    rest: tuple[ServingOutcome, tuple[tuple[str, str], ...]],
) -> CalibrationReport:
    served, skipped = rest
    return CalibrationReport(calibration, is_fit, groups, rows, served.errors, (*skipped, *served.skipped))


def serving_groups(errors: Sequence[ServingError]) -> dict[str, GroupError]:
    """Error statistics of load tests by group."""
    groups = {}
    for name in sorted({error.group for error in errors}):
        own = [error for error in errors if error.group == name]
        unseen = [error.left_out for error in own if error.left_out is not None]
        held = _stats(np.array(unseen)) if len(unseen) == len(own) else None
        groups[name] = GroupError(len(own), _stats(np.array([error.error for error in own])), held)
    return groups


def errors_of(coefficients: Coefficients, observations: Sequence[Observation]) -> NDArray[np.float64]:
    """Signed relative error of each observation."""
    if not observations:
        return np.zeros(0)
    problem = Problem(observations)
    return np.asarray(problem.predict(coefficients) / problem.seconds - 1)


def _usable(
    rows: Sequence[PublishedRow], data: Path, is_enough: bool = False
) -> tuple[list[Observation], tuple[tuple[str, str], ...]]:
    """Observations of steps; there must be some, unless the rest of the table `is_enough`."""
    observations: list[Observation] = []
    skipped: list[tuple[str, str]] = []
    for row in rows:
        found, reasons = observe(row)
        observations += found
        skipped += [(row.row_id, reason) for reason in reasons]
    if not (observations or is_enough):
        raise SettingsError(f"none of the {len(rows)} rows of {data} is usable; the first: {skipped[0][1]}")
    return observations, tuple(skipped)


def _left_out(observations: Sequence[Observation]) -> NDArray[np.float64]:
    """Errors of fits that saw no row of the observation's own model, models of equal dimensions being one.

    NaN when there is but one model.
    """
    errors = np.full(len(observations), np.nan)
    for shape in dict.fromkeys(o.shape for o in observations):
        others = [o for o in observations if o.shape != shape]
        own = [i for i, o in enumerate(observations) if o.shape == shape]
        if others:
            errors[own] = errors_of(fit(others), [observations[i] for i in own])
    return errors


def _groups(
    observations: Sequence[Observation], errors: NDArray[np.float64], left_out: NDArray[np.float64] | None
) -> dict[str, GroupError]:
    groups = {}
    for name in sorted({o.group for o in observations}):
        own = np.array([o.group == name for o in observations])
        held = None if left_out is None or np.isnan(left_out[own]).any() else _stats(left_out[own])
        groups[name] = GroupError(int(own.sum()), _stats(errors[own]), held)
    return groups


def _stats(errors: NDArray[np.float64]) -> ErrorStats:
    size = np.abs(errors)
    return ErrorStats(float(size.mean()), float(np.median(size)), float(np.quantile(size, 0.9)))


def _rows(
    observations: Sequence[Observation], errors: NDArray[np.float64], left_out: NDArray[np.float64] | None
) -> tuple[RowError, ...]:
    unseen = [None] * len(observations) if left_out is None else [None if np.isnan(e) else float(e) for e in left_out]
    return tuple(
        RowError(
            row_id=o.row_id,
            group=o.group,
            model=o.model,
            measured_ms=o.seconds * 1e3,
            predicted_ms=o.seconds * (1 + float(error)) * 1e3,
            error=float(error),
            left_out=held,
        )
        for o, error, held in zip(observations, errors, unseen, strict=True)
    )
