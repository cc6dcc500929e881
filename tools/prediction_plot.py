"""Draws docs/images/predicted.svg, predicted against published times of steps: `python -m tools.prediction_plot [CSV]`.

The default table is the sample of published rows that the tests use. Each row is compared with the shipped calibration,
which was fitted to these rows among others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from neuronserve.planner.calibrate.comparison import Figure
from neuronserve.planner.calibrate.report import run_check
from neuronserve.planner.validate.plot import drawn
from neuronserve.server.cost.calibration import shipped_calibration

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "planner" / "published_sample.csv"
PICTURE = ROOT / "docs" / "images" / "predicted.svg"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.prediction_plot", description=__doc__)
    parser.add_argument("table", nargs="?", type=Path, default=TABLE, metavar="CSV", help="table of published rows")
    PICTURE.write_text(drawn(compared(parser.parse_args(argv).table)))
    return 0


def compared(table: Path) -> tuple[Figure, ...]:
    """Measured and predicted times of every step that the table publishes."""
    return run_check(table, shipped_calibration()).steps


if __name__ == "__main__":
    sys.exit(main())
