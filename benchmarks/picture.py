"""Plot of one CPU level as SVG: a row for each ratio with its interval and both values, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log10

from benchmarks.published import Line
from neuronserve.loadtests.svg import number
from neuronserve.planner.validate.plot import FAINT, INK, LINE, PAPER

LABELS, PLOT, VALUES = 370.0, 260.0, 170.0  # widths in pixels
ROW, TOP, BOTTOM = 18.0, 26.0, 34.0
ENDS = (0.4, 10.0)  # of the axis; a value beyond stands at its end
TICKS = (0.5, 1, 2, 5, 10)
EQUAL, OTHER = "#00897b", "#ef6c00"


def drawn(lines: Sequence[Line]) -> str:
    """Return the picture: filled dots are ratios at equal quality, rings are others."""
    width, height = LABELS + PLOT + VALUES, TOP + ROW * len(lines) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'font-family="sans-serif" font-size="11" fill="{INK}">',
        f'<rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>',
        *_axis(height - BOTTOM),
        *(part for number, line in enumerate(lines) for part in _row(line, TOP + ROW * (number + 0.5))),
        f'<text x="{LABELS:g}" y="{height - 6:g}">times as fast: this, the peer; filled: at equal quality</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def label(line: Line) -> str:
    """Return what is compared, in one line."""
    ours, workload, theirs = line.compared
    return f"{ours}, {workload} {line.unit}; {theirs}"


def _axis(bottom: float) -> Iterator[str]:
    for tick in TICKS:
        colour = LINE if tick == 1 else FAINT
        yield f'<path d="M{_x(tick)},{TOP:g}V{bottom:g}" stroke="{colour}" fill="none"/>'
        yield f'<text x="{_x(tick)}" y="{TOP - 8:g}" text-anchor="middle">{tick:g}</text>'


def _row(line: Line, y: float) -> Iterator[str]:
    yield f'<text x="{LABELS - 8:g}" y="{y + 4:g}" text-anchor="end">{escape(label(line))}</text>'
    colour = EQUAL if line.is_equal_quality else OTHER
    if line.interval is not None:
        low, high = line.interval
        yield f'<path d="M{_x(low)},{y:g}H{_x(high)}" stroke="{colour}" stroke-width="2" fill="none"/>'
    fill = colour if line.is_equal_quality else PAPER
    yield f'<circle cx="{_x(line.times)}" cy="{y:g}" r="4" fill="{fill}" stroke="{colour}" stroke-width="1.5"/>'
    values = f"{line.times:.2f}: {number(line.ours)}, {number(line.theirs)}"
    yield f'<text x="{LABELS + PLOT + 8:g}" y="{y + 4:g}">{values}</text>'


def _x(value: float) -> str:
    low, high = (log10(end) for end in ENDS)
    share = (min(max(log10(value), low), high) - low) / (high - low)
    return f"{LABELS + share * PLOT:.1f}"
