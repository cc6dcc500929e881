"""`neuronserve calibrate`: fit the cost model to published rows, or check the stored fit, and report the errors.

A check never fits. Errors are (predicted - measured) / measured; group figures are of their absolute values.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...server.config.formats import StackName
from ...server.cost.calibration import Calibration, ErrorStats, GroupError, default_calibration
from ...server.cost.evidence import Evidence, Series
from ...server.errors import SettingsError
from .accuracy import Coverage, coverage_of, outcomes
from .comparison import Figure, compare_load_tests, compare_steps
from .observation import Observation, observe
from .published import PublishedRow, data_hash, read_rows
from .serving_errors import ServingError, ServingOutcome, calibrate_serving, check_serving
from .step_errors import (
    RowError,
    StepOutcome,
    calibrate_steps,
    check_steps,
    coefficients_without,
)

Skipped = tuple[tuple[str, str], ...]  # row and reason


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """Outcome of a fit or of a check."""

    calibration: Calibration
    is_fit: bool
    groups: dict[str, GroupError]
    baselines: dict[str, dict[str, ErrorStats | None]]  # of plain models on the same groups; see step_errors.py
    rows: tuple[RowError, ...]
    serving: tuple[ServingError, ...]  # of load tests: up to three figures a row
    skipped: Skipped  # a row has up to two reasons
    observations: tuple[Observation, ...] = ()  # those of `rows`
    steps: tuple[Figure, ...] = ()  # `rows`, each with its series and band
    load: tuple[Figure, ...] = ()  # `serving`, the same

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All compared figures."""
        return *self.steps, *self.load

    @property
    def coverage(self) -> dict[str, Coverage]:
        """Shares of the table's figures within their bands, by group; groups without bands are left out."""
        names = dict.fromkeys(each.group for each in self.figures)
        found = {name: coverage_of(outcomes(each for each in self.figures if each.group == name)) for name in names}
        return {name: each for name, each in found.items() if each is not None}

    def as_json(self) -> dict[str, Any]:
        """Return plain values: `groups` by name with errors; baselines; all rows; skipped rows and reasons."""
        return {
            "calibration": self.calibration.as_dict(),
            "is_fit": self.is_fit,
            "groups": {name: asdict(group) for name, group in self.groups.items()},
            "baselines": {
                name: {group: stats and asdict(stats) for group, stats in groups.items()}
                for name, groups in self.baselines.items()
            },
            "band_coverage": {name: asdict(coverage) for name, coverage in self.coverage.items()},
            "rows": [asdict(row) for row in self.rows],
            "serving": [asdict(row) for row in self.serving],
            "skipped": [{"row_id": row_id, "reason": reason} for row_id, reason in self.skipped],
        }


def run_calibrate(data: Path, date: str | None = None) -> CalibrationReport:
    """Choose the terms and fit all coefficients to the usable rows of `data`; repeat it without each predicted part.

    `date` (ISO) is stored with the fit; the default is today. Raises SettingsError for an invalid table, or if no row
    is usable.
    """
    rows = read_rows(data)
    observations, skipped = _usable(rows, data)
    steps = calibrate_steps(observations)
    calibration = Calibration(
        coefficients=steps.coefficients,
        date=date or datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        data_sha256=data_hash(data),
        num_rows=len({o.row_id for o in observations}),
        errors=steps.groups,
        evidence=steps.evidence,
        baselines=steps.baselines,
    )

    measured = {o.series for o in observations}

    def without(series: Series) -> Calibration:
        if series not in measured:
            return calibration
        return replace(calibration, coefficients=coefficients_without(observations, series))

    served = calibrate_serving(rows, calibration, without)
    found = replace(
        calibration,
        errors=steps.groups | served.groups,
        hosts=served.coefficients.hosts,
        clients=asdict(served.coefficients.clients),
        evidence=Evidence((*steps.evidence.samples, *served.samples)),
        baselines=steps.baselines | served.baselines,
    )
    return _report(found, True, (rows, observations), (steps, served), skipped)


def run_check(data: Path, calibration: Calibration | None = None, stack: StackName | None = None) -> CalibrationReport:
    """Apply a stored calibration (the shipped one by default) to the usable rows of `data`, without a fit.

    With `stack` load tests of other software are left out. Raises SettingsError for an invalid table, or if no row is
    usable.
    """
    calibration = calibration or default_calibration()
    rows = read_rows(data)
    served = check_serving(rows, calibration, stack)
    observations, skipped = _usable(rows, data, is_enough=bool(served.errors))
    steps = check_steps(observations, dict(calibration.coefficients), calibration.evidence)
    return _report(calibration, False, (rows, observations), (steps, served), skipped)


def _report(
    calibration: Calibration,
    is_fit: bool,
    table: tuple[Sequence[PublishedRow], Sequence[Observation]],
    outcome: tuple[StepOutcome, ServingOutcome],
    skipped: Skipped,
) -> CalibrationReport:
    (rows, observations), (steps, served) = table, outcome
    groups = steps.groups | served.groups
    rest = steps.baselines | served.baselines, steps.rows, served.errors, (*skipped, *served.skipped)
    months, evidence = {row.row_id: row.texts["date"][:7] for row in rows}, calibration.evidence
    figures = compare_steps(observations, steps.rows, months, evidence)
    load = compare_load_tests(served.errors, rows, evidence)
    return CalibrationReport(calibration, is_fit, groups, *rest, tuple(observations), tuple(figures), tuple(load))


def _usable(rows: Sequence[PublishedRow], data: Path, is_enough: bool = False) -> tuple[list[Observation], Skipped]:
    """Return observations of steps. Raises SettingsError if there are none, unless the rest `is_enough`."""
    observations: list[Observation] = []
    skipped: list[tuple[str, str]] = []
    for row in rows:
        found, reasons = observe(row)
        observations += found
        skipped += [(row.row_id, reason) for reason in reasons]
    if not (observations or is_enough):
        raise SettingsError(f"none of the {len(rows)} rows of {data} is usable; the first: {skipped[0][1]}")
    return observations, tuple(skipped)
