"""The part of `neuronserve calibrate` that is about encoders: adds a table of theirs to a fit or a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...server.cost.calibration import Calibration, ErrorStats, default_calibration
from ...server.cost.evidence import Evidence
from ...server.cost.terms import ENCODE_TERMS
from ...server.errors import SettingsError
from .comparison import Figure, compare_steps
from .encoder_decoder import UNMEASURED, observe_answers
from .encoder_fit import calibrate_encoders, check_encoders
from .encoder_passes import observe_passes
from .encoder_rows import read_encoder_rows
from .published import data_hash
from .report import CalibrationReport
from .step_errors import StepOutcome

Baselines = Mapping[str, Mapping[str, ErrorStats | None]]


def run_encoders(table: Path, report: CalibrationReport | None = None) -> CalibrationReport:
    """Return `report` with the encoders of `table`: fitted where it is a fit, compared where it is a check.

    Without a report the terms of a pass are fitted, and the rest of the calibration in force stays. Raises
    SettingsError for an invalid table, or if no row of it is usable.
    """
    report = report or CalibrationReport(default_calibration(), True, {}, {}, (), (), ())
    rows = read_encoder_rows(table)
    (passes, no_passes), (answers, no_answers) = observe_passes(rows), observe_answers(rows)
    if not passes:
        raise SettingsError(f"none of the {len(rows)} rows of {table} is usable; the first: {no_passes[0][1]}")
    own = dict(report.calibration.coefficients)
    outcomes = [calibrate_encoders(passes) if report.is_fit else check_encoders(passes, own)]
    if answers:
        outcomes.append(check_encoders(answers, own | outcomes[0].coefficients))
    calibration = _merged(report.calibration, outcomes, table) if report.is_fit else report.calibration
    found, observed = tuple(row for outcome in outcomes for row in outcome.rows), (*passes, *answers)
    months = {row.row_id: row.texts["date"][:7] for row in rows}
    figures = compare_steps(observed, found, months, calibration.evidence)
    figures[len(passes) :] = map(_widened, figures[len(passes) :])
    compared = {row.row_id for row in found}
    skipped = [(row_id, reason) for row_id, reason in (*no_passes, *no_answers) if row_id not in compared]
    return replace(
        report,
        calibration=calibration,
        groups=report.groups | {name: group for outcome in outcomes for name, group in outcome.groups.items()},
        baselines=_joined(report.baselines, outcomes[0].baselines),
        rows=(*report.rows, *found),
        observations=(*report.observations, *observed),
        steps=(*report.steps, *figures),
        skipped=(*report.skipped, *skipped),
    )


def _merged(calibration: Calibration, outcomes: list[StepOutcome], table: Path) -> Calibration:
    """Return the calibration with the coefficients, errors and samples of passes in place of its own."""
    passes = outcomes[0]
    kept = {name: value for name, value in calibration.coefficients.items() if name not in ENCODE_TERMS}
    errors = {name: group for name, group in calibration.errors.items() if not _is_of_encoders(name)}
    for outcome in outcomes:
        errors |= outcome.groups
    samples = [sample for sample in calibration.evidence.samples if sample.point.phase != "encode"]
    plain = {
        name: {group: stats for group, stats in groups.items() if not _is_of_encoders(group)}
        for name, groups in calibration.baselines.items()
    }
    return replace(
        calibration,
        coefficients=kept | passes.coefficients,
        errors=errors,
        evidence=Evidence((*samples, *passes.evidence.samples)),
        baselines=_joined(plain, passes.baselines),
        encoders_sha256=data_hash(table),
    )


def _widened(answer: Figure) -> Figure:
    return answer if answer.band is None else replace(answer, band=answer.band.beyond(len(UNMEASURED)))


def _is_of_encoders(group: str) -> bool:
    return group.startswith("encode")


def _joined(one: Baselines, other: Baselines) -> dict[str, dict[str, ErrorStats | None]]:
    return {name: {**one.get(name, {}), **other.get(name, {})} for name in {**one, **other}}
