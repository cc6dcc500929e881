"""Comparison of a calibration with a table of published figures.

Two ways of prediction: "as shipped", with series that the fit has seen kept apart from those that it has not; and "left
out", from the errors that the calibration stores of fits without the predicted part. Nothing is fitted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...server import __version__
from ...server.cost.calibration import Calibration
from ..calibrate.accuracy import Accuracy, Outcome, accuracy_of, outcomes
from ..calibrate.comparison import Figure, phase_of, series_name
from ..calibrate.encoder_report import run_encoders
from ..calibrate.fit import Problem, Vector, as_vector
from ..calibrate.observation import Observation
from ..calibrate.published import data_hash
from ..calibrate.report import CalibrationReport, run_check
from ..calibrate.step_errors import ROOFLINE, SIX, roofline
from .noise import scatters, spreads
from .releases import ALL, Release, Split, releases


@dataclass(frozen=True, slots=True)
class Validation:
    """A table's figures, each with its prediction, and what follows from them."""

    table: str  # name of the file
    table_sha256: str
    calibration: Calibration
    figures: tuple[Figure, ...]
    plain: Mapping[str, tuple[Figure, ...]]  # figures of steps, as plain models predict them
    six: Mapping[str, float]  # coefficients of the plain fit; empty if the calibration keeps none
    skipped: tuple[tuple[str, str], ...]  # row and reason

    def release(self, name: str = __version__) -> Release:
        """Return what is kept of a release."""
        sound = [each for each in self.figures if not each.is_apart]
        return Release(
            name=name,
            calibration=self.calibration.version,
            table_sha256=self.table_sha256,
            coefficients=dict(self.calibration.coefficients),
            six=dict(self.six),
            totals={ALL: split(sound)} | _splits(sound, lambda each: phase_of(each.group)),
            groups=_splits(self.figures, lambda each: each.group),
            plain={name: _splits(figures, lambda each: each.group) for name, figures in self.plain.items()},
            left_out=left_out(self.calibration),
            spreads=spreads(self.figures),
            scatters=scatters(sound),
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values: the accuracy as it is kept of a release, all figures, skipped rows and reasons."""
        return {
            "table": self.table,
            "accuracy": asdict(self.release()),
            "errors": {name: asdict(group) for name, group in self.calibration.errors.items()},
            "figures": [_plain(each) for each in self.figures],
            "skipped": [{"row_id": row_id, "reason": reason} for row_id, reason in self.skipped],
        }


def validate(data: Path, encoders: Path | None = None) -> Validation:
    """Return the comparison of the calibration in force with a table, and with one of encoders if it is given.

    Raises SettingsError for an invalid table.
    """
    checked = checked_tables(data, encoders)
    six = next((each.six for each in releases() if each.calibration == checked.calibration.version), {})
    return Validation(
        table=data.name,
        table_sha256=data_hash(data),
        calibration=checked.calibration,
        figures=checked.figures,
        plain=plain_figures(checked.observations, checked.steps, six),
        six=six,
        skipped=checked.skipped,
    )


def checked_tables(data: Path, encoders: Path | None) -> CalibrationReport:
    """Return the errors of the calibration in force on all tables."""
    checked = run_check(data)
    return checked if encoders is None else run_encoders(encoders, checked)


def plain_figures(
    observations: Sequence[Observation], figures: Sequence[Figure], six: Mapping[str, float]
) -> dict[str, tuple[Figure, ...]]:
    """Return the figures of steps with predictions of plain models: six coefficients if given, and the roofline."""
    if not observations:
        return {}
    problem = Problem(observations)
    errors: dict[str, Vector] = {ROOFLINE: roofline(problem)}
    if six:
        every = np.ones(len(observations), dtype=np.bool_)
        errors = {SIX: problem.errors(as_vector(dict(six)), every)} | errors
    return {
        name: tuple(
            replace(figure, predicted=figure.measured * (1 + float(error)), band=None)
            for figure, error in zip(figures, found, strict=True)
            if error > -1  # a model without a term for the figure says nothing of it
        )
        for name, found in errors.items()
    }


def left_out(calibration: Calibration) -> dict[str, Accuracy]:
    """Return the accuracy of fits without the predicted series: of ALL, by phase, and by kind of model and chip."""
    groups: dict[str, list[Outcome]] = {}
    totals: dict[str, list[Outcome]] = {ALL: []}
    for each in calibration.evidence.samples:
        point = each.point
        band = calibration.evidence.band(point, each.series)
        outcome = Outcome(series_name(each.series), point, 1 / each.error - 1, band, each.num_rows)
        name = f"{point.phase}, {'experts' if point.has_experts else 'dense'}, {point.chip}"
        groups.setdefault(name, []).append(outcome)
        totals[ALL].append(outcome)
        totals.setdefault(point.phase, []).append(outcome)
    groups = totals | {name: groups[name] for name in sorted(groups)}
    return {name: found for name, own in groups.items() if (found := accuracy_of(own)) is not None}


def split(figures: Iterable[Figure]) -> Split:
    """Return the accuracy on seen and on unseen figures."""
    every = list(figures)
    return Split(
        accuracy_of(outcomes(each for each in every if each.is_seen)),
        accuracy_of(outcomes(each for each in every if not each.is_seen)),
    )


def _splits(figures: Iterable[Figure], key: Callable[[Figure], str]) -> dict[str, Split]:
    groups: dict[str, list[Figure]] = {}
    for each in figures:
        groups.setdefault(key(each), []).append(each)
    return {name: split(groups[name]) for name in sorted(groups)}


def _plain(figure: Figure) -> dict[str, Any]:
    band = None if figure.band is None else figure.band.as_json()
    names = ("row_id", "group", "series", "label", "unit", "measured", "predicted", "error", "is_seen")
    return {**{name: getattr(figure, name) for name in names}, "band": band}
