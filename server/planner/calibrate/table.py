"""A calibration report as tables for a terminal. Formats only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from rich.console import Group
from rich.table import Table

from server.cost.calibration import MEANING, SERVING_MEANING
from server.planner.calibrate.report import CalibrationReport, RowError
from server.planner.calibrate.serving_errors import ServingError


def render(report: CalibrationReport, with_rows: bool = True) -> Group:
    """Coefficients (of a fit), errors by group, errors by row, and how much was skipped."""
    parts = [_coefficients(report)] if report.is_fit else []
    parts.append(_groups(report))
    if with_rows:
        parts += [_rows(report), _serving(report)]
    footer = (
        f"calibration {report.calibration.version}; {len(report.rows)} times and {len(report.serving)} figures of load "
        f"tests compared, {len(report.skipped)} skipped"
    )
    return Group(*parts, footer)


def _coefficients(report: CalibrationReport) -> Table:
    table = Table("coefficient", "value", "unit", "meaning", title="Coefficients")
    calibration = report.calibration
    for values, meanings in ((calibration.coefficients, MEANING), (calibration.serving, SERVING_MEANING)):
        for name, value in asdict(values).items():
            unit, meaning = meanings[name]
            table.add_row(name, f"{value:.4g}", unit, meaning)
    return table


def _groups(report: CalibrationReport) -> Table:
    title = "Absolute relative error by group"
    table = Table("group", "n", "mean", "median", "p90", title=title)
    if report.is_fit:
        for column in ("mean", "median", "p90"):
            table.add_column(f"{column}, model left out", justify="right")
    for name, group in report.groups.items():
        figures = [group.all.mean, group.all.median, group.all.p90]
        if report.is_fit:
            held = group.left_out
            figures += [held.mean, held.median, held.p90] if held else [float("nan")] * 3
        table.add_row(name, str(group.n), *(f"{figure:.1%}" for figure in figures))
    return table


def _rows(report: CalibrationReport) -> Table:
    rows = [(row, (f"{row.measured_ms:.2f}", f"{row.predicted_ms:.2f}")) for row in report.rows]
    return _errors("Rows", ("measured ms", "predicted ms"), rows, report.is_fit)


def _serving(report: CalibrationReport) -> Table:
    rows = [(row, (f"{row.measured:.1f}", f"{row.predicted:.1f}", row.unit)) for row in report.serving]
    return _errors("Load tests", ("measured", "predicted", "unit"), rows, report.is_fit)


def _errors(
    title: str, columns: Iterable[str], rows: Iterable[tuple[RowError | ServingError, Iterable[str]]], is_fit: bool
) -> Table:
    table = Table("row", "group", "model", *columns, "error", title=title)
    if is_fit:
        table.add_column("error, model left out", justify="right")
    for row, figures in rows:
        held = [("" if row.left_out is None else f"{row.left_out:+.1%}")] if is_fit else []
        table.add_row(row.row_id, row.group, row.model, *figures, f"{row.error:+.1%}", *held)
    return table
