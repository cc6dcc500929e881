"""Keeps what a release predicts: `python -m tools.record_release CSV [--encoders CSV] [--name NAME]`.

The figures of the shipped calibration on a table of published rows go into planner/validate/releases.json, in place of
an entry of that name or of an unreleased one. The plain fit of six coefficients is made here, to the same rows that the
calibration was fitted to. Run it after each fit; docs/internals/validation.md and its test read the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from neuronserve.planner.calibrate.fit import NAMES, Problem, as_coefficients
from neuronserve.planner.calibrate.report import CalibrationReport
from neuronserve.planner.calibrate.step_errors import SIX_TERMS
from neuronserve.planner.validate.releases import Release, releases
from neuronserve.planner.validate.report import checked_tables, plain_figures, validate
from tools.compact_json import compact

FILE = Path(__file__).resolve().parent.parent / "planner" / "validate" / "releases.json"
UNRELEASED = "unreleased"
DIGITS = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.record_release", description=__doc__)
    parser.add_argument("table", type=Path, metavar="CSV", help="table of published rows")
    parser.add_argument("--encoders", type=Path, metavar="CSV", help="table of published rows of encoders")
    parser.add_argument("--name", default=UNRELEASED, help="version (default: %(default)s)")
    arguments = parser.parse_args(argv)
    kept = [each for each in releases() if each.name not in (arguments.name, UNRELEASED)]
    FILE.write_text(text_of([*kept, record(arguments.name, arguments.table, arguments.encoders)]))
    return 0


def record(name: str, table: Path, encoders: Path | None = None) -> Release:
    """Return the entry of a release."""
    checked = checked_tables(table, encoders)
    six = six_coefficients(checked)
    plain = plain_figures(checked.observations, checked.steps, six)
    return replace(validate(table, encoders), six=six, plain=plain).release(name)


def six_coefficients(checked: CalibrationReport) -> dict[str, float]:
    """Return the plain fit to the rows that the calibration has seen and no other row contradicts."""
    rows = np.array([each.is_seen and not each.is_apart for each in checked.steps])
    terms = [NAMES.index(name) for name in SIX_TERMS]
    found = as_coefficients(Problem(checked.observations).fit(terms, rows))
    return {name: found[name] for name in SIX_TERMS}


def text_of(found: Sequence[Release]) -> str:
    """Return the file's text, with numbers of four digits."""
    return compact([asdict(each) for each in found], 4, DIGITS)


if __name__ == "__main__":
    sys.exit(main())
