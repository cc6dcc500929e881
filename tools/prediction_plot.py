"""Draws docs/images/predicted.svg, predicted against published times of steps: `python -m tools.prediction_plot [CSV]`.

The default table is the sample of published rows that the tests use. Each row is compared with the shipped calibration,
which was fitted to these rows among others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from math import log10
from pathlib import Path

from neuronserve.planner.calibrate.observation import observe
from neuronserve.planner.calibrate.published import read_rows
from neuronserve.planner.calibrate.step_errors import RowError, check_steps
from neuronserve.server.cost.calibration import shipped_calibration

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "planner" / "published_sample.csv"
PICTURE = ROOT / "docs" / "images" / "predicted.svg"

SIZE, MARGIN = 440.0, 50.0  # of the square with the points, and of the space for labels, in pixels
DECADES = (0.5, 4.5)  # axes from 3 ms to 32 s
COLOURS = {"decode": "#00796b", "prefill": "#e65100"}
BAND = log10(1.2)  # half of the shaded band: 20 %


def main(argv: Sequence[str] | None = None) -> int:
    """Write the picture; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.prediction_plot", description=__doc__)
    parser.add_argument("table", nargs="?", type=Path, default=TABLE, metavar="CSV", help="table of published rows")
    PICTURE.write_text(drawn(compared(parser.parse_args(argv).table)))
    return 0


def compared(table: Path) -> tuple[RowError, ...]:
    """Measured and predicted times of every step that the table publishes."""
    observations = [each for row in read_rows(table) for each in observe(row)[0]]
    shipped = shipped_calibration()
    return check_steps(observations, dict(shipped.coefficients), shipped.evidence).rows


def drawn(rows: Sequence[RowError]) -> str:
    """The picture as SVG: both axes logarithmic, a diagonal, and a band of 20 % around it."""
    width, height = SIZE + 2 * MARGIN, SIZE + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>',
        *_frame(),
        *_points(rows),
        *_legend(rows),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _frame() -> Iterator[str]:
    first, last = (10.0**decade for decade in DECADES)
    low, high = 10.0**-BAND, 10.0**BAND
    corners = ((first, first * high), (last / high, last), (last, last), (last, last * low), (first / low, first))
    yield f'<polygon points="{" ".join(f"{_x(x)},{_y(y)}" for x, y in (*corners, (first, first)))}" fill="#eee"/>'
    yield f'<path d="M{_x(first)},{_y(first)}L{_x(last)},{_y(last)}" stroke="#999" fill="none"/>'
    for decade in range(1, 5):
        ms = 10.0**decade
        label = f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"
        yield f'<path d="M{_x(ms)},{_y(first)}V{_y(last)}M{_x(first)},{_y(ms)}H{_x(last)}" stroke="#ddd" fill="none"/>'
        yield f'<text x="{_x(ms)}" y="{SIZE + MARGIN + 16:g}" text-anchor="middle">{label}</text>'
        yield f'<text x="{MARGIN - 4:g}" y="{_y(ms)}" text-anchor="end">{label}</text>'
    middle = MARGIN + SIZE / 2
    yield f'<text x="{middle:g}" y="{SIZE + MARGIN + 36:g}" text-anchor="middle">published</text>'
    yield f'<text x="{MARGIN:g}" y="{MARGIN - 10:g}">predicted</text>'


def _points(rows: Sequence[RowError]) -> Iterator[str]:
    for row in sorted(rows, key=lambda row: (row.group, row.row_id)):
        colour = COLOURS[_phase(row)]
        place = f'cx="{_x(row.measured_ms)}" cy="{_y(row.predicted_ms)}"'
        title = f"{row.model} TP{row.tp}: {row.measured_ms:.3g} ms, {row.predicted_ms:.3g} ms predicted"
        yield f'<circle {place} r="4" fill="{colour}" fill-opacity="0.6"><title>{title}</title></circle>'


def _legend(rows: Sequence[RowError]) -> Iterator[str]:
    for line, (phase, colour) in enumerate(COLOURS.items()):
        count = sum(_phase(row) == phase for row in rows)
        y = MARGIN + 20 + 18 * line
        yield f'<circle cx="{MARGIN + 16:g}" cy="{y - 4:g}" r="4" fill="{colour}"/>'
        yield f'<text x="{MARGIN + 26:g}" y="{y:g}">{count} {phase} times</text>'
    yield f'<text x="{MARGIN + 10:g}" y="{MARGIN + 56:g}">shaded: within 20 %</text>'


def _phase(row: RowError) -> str:
    return row.group.split("_")[0]


def _x(ms: float) -> str:
    return f"{MARGIN + _share(ms) * SIZE:.1f}"


def _y(ms: float) -> str:
    return f"{MARGIN + (1 - _share(ms)) * SIZE:.1f}"


def _share(ms: float) -> float:
    """Place on an axis, from 0 to 1; beyond its ends at them."""
    return min(max((log10(ms) - DECADES[0]) / (DECADES[1] - DECADES[0]), 0.0), 1.0)


if __name__ == "__main__":
    sys.exit(main())
