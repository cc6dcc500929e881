"""`neuronserve calibrate` in a terminal: run, print tables, write the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.table import Column, Table

from ...server.config.formats import StackName
from ...server.cost.calibration import ErrorStats
from ...server.cost.terms import TERMS
from ...server.settings.base import write_report
from .accuracy import Coverage
from .encoder_report import run_encoders
from .report import CalibrationReport, run_calibrate, run_check
from .serving_errors import ServingError
from .step_errors import RowError


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of published rows that a command names."""

    data: Path | None = None  # to fit
    check_file: Path | None = None  # to hold the stored fit against
    encoders: Path | None = None  # of encoders: fitted, or with `check_file` compared


def run_calibration(tables: Tables, json_file: Path | None, stack: StackName | None) -> None:
    """Fit to tables of published rows, or check the stored fit against them, and print. Raises SettingsError."""
    report = None
    if tables.data is not None:
        report = run_calibrate(tables.data)
    elif tables.check_file is not None:
        report = run_check(tables.check_file, stack=stack)
    if report is None or tables.encoders is not None:
        report = run_encoders(tables.encoders or Path(), report)
    Console().print(render(report))
    write_report(json_file, report.as_json())


WITHIN = "P10 to P90 holds: rows / configurations / series"


def render(report: CalibrationReport, with_rows: bool = True) -> Group:
    """Return coefficients (of a fit), errors by group, errors by row, and the number of skipped rows."""
    parts = [_coefficients(report), _hosts(report)] if report.is_fit else []
    parts.append(_groups(report))
    if with_rows:
        parts += [_rows(report), _serving(report)]
    footer = (
        f"calibration {report.calibration.version}; {len(report.rows)} times and {len(report.serving)} figures of load "
        f"tests compared, {len(report.skipped)} skipped"
    )
    return Group(*parts, footer)


def _coefficients(report: CalibrationReport) -> Table:
    table = Table("coefficient", "value", "unit", "of", title="Coefficients")
    found = report.calibration.coefficients
    for name, term in TERMS.items():
        value = f"{found[name]:.4g}" if name in found else "not needed"
        table.add_row(name, value, term.unit, term.meaning)
    return table


def _hosts(report: CalibrationReport) -> Table:
    table = Table("stack", "coefficient", "seconds", title="Time added by the hosts of stacks")
    for stack, host in report.calibration.hosts.items():
        for name, value in asdict(host).items():
            table.add_row(stack, name, f"{value:.4g}")
    return table


def _groups(report: CalibrationReport) -> Table:
    title = "Absolute relative error by group: mean / median / p90, and bias"
    table = Table(Column("group", no_wrap=True), "n", "fitted", title=title)
    ways = tuple(dict.fromkeys(way for group in report.groups.values() for way in group.left_out))
    for column in (*(f"unseen {way}" for way in ways), *report.baselines, WITHIN):
        table.add_column(column)
    covered = report.coverage
    for name, group in report.groups.items():
        cells = [_figures(group.left_out.get(way)) for way in ways]
        cells += [_figures(stats.get(name)) for stats in report.baselines.values()]
        table.add_row(name, str(group.n), _figures(group.all), *cells, _shares(covered.get(name)))
    return table


def _figures(stats: ErrorStats | None) -> str:
    if stats is None:
        return "-"
    return f"{stats.mean:.1%} / {stats.median:.1%} / {stats.p90:.1%}, {stats.bias:+.1%}"


def _shares(coverage: Coverage | None) -> str:
    if coverage is None:
        return "no band"
    return f"{coverage.rows:.0%} / {coverage.configurations:.0%} / {coverage.series:.0%}"


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
        table.add_column("error, series unseen", justify="right")
    for row, figures in rows:
        held = [("" if row.left_out is None else f"{row.left_out:+.1%}")] if is_fit else []
        table.add_row(row.row_id, row.group, row.model, *figures, f"{row.error:+.1%}", *held)
    return table
