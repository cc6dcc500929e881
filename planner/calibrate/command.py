"""`neuronserve calibrate` in a terminal: run, print tables, write the file."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from neuronserve.planner.calibrate.report import run_calibrate, run_check
from neuronserve.planner.calibrate.table import render
from neuronserve.server.config.formats import StackName
from neuronserve.server.settings.base import write_report


def run_calibration(rows: Path, json_file: Path | None, stack: StackName | None, *, is_fit: bool) -> None:
    """Fit to a table of published rows, or hold the stored fit against it, and print. Raises SettingsError for none."""
    report = run_calibrate(rows) if is_fit else run_check(rows, stack=stack)
    Console().print(render(report))
    write_report(json_file, report.as_json())
