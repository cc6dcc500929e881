"""Small charts as inline SVG: lines, steps and dots over linear or logarithmic axes.

Colours are CSS classes (`s0`, `s1`, ... and `limit`), which the page defines for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 46
Point = tuple[float, float]
Style = Literal["line", "dots", "line-dots", "step", "step-dots"]


@dataclass(frozen=True, slots=True)
class Series:
    """A named set of points. `notes` are shown on hovering over a dot."""

    name: str
    points: Sequence[Point]
    style: Style = "line"
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis and its title; `limit` is drawn across the chart."""

    label: str
    is_log: bool = False
    limit: float | None = None
    low: float | None = None  # the ends of the axis; None: by the values
    high: float | None = None


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values to pixels."""

    low: float
    high: float
    first: float
    last: float
    is_log: bool

    def at(self, value: float) -> float:
        a, b, v = (math.log10(x) for x in (self.low, self.high, value)) if self.is_log else (self.low, self.high, value)
        return self.first + (v - a) / (b - a) * (self.last - self.first)


def chart(x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Return an SVG element, or a sentence without points. A logarithmic axis leaves out values of 0 or less."""
    shown = [Series(s.name, kept, s.style, s.notes) for s in series if (kept := _drawable(s.points, x, y))]
    if not shown:
        return '<p class="none">no data for this chart</p>'
    points = [point for s in shown for point in s.points]
    xs = _scale(x, [p[0] for p in points], (LEFT, WIDTH - RIGHT))
    ys = _scale(y, [p[1] for p in points], (HEIGHT - BOTTOM, TOP))
    parts = [_grid(xs, ys), _labels(x, y), _limits(x, y, xs, ys)]
    parts += [_series(s, i, xs, ys) for i, s in enumerate(shown)]
    body = "".join(parts)
    label = escape(f"{y.label} by {x.label}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{body}</svg>{_legend(shown)}'


def _drawable(points: Sequence[Point], x: Axis, y: Axis) -> list[Point]:
    return [p for p in points if (p[0] > 0 or not x.is_log) and (p[1] > 0 or not y.is_log)]


def _scale(axis: Axis, values: Sequence[float], ends: tuple[float, float]) -> _Scale:
    everything = [*values, *([axis.limit] if axis.limit else [])]
    low = min(everything) if axis.low is None else axis.low
    high = max(everything) if axis.high is None else axis.high
    if axis.is_log:
        low, high = low / 1.1, high * 1.1
    elif axis.low is None:
        low = min(0.0, low)
    if high <= low:
        high = low + 1.0
    if not axis.is_log and axis.high is None:
        high += 0.04 * (high - low)
    return _Scale(low, high, *ends, axis.is_log)


def ticks(low: float, high: float, is_log: bool) -> list[float]:
    """Return round values in [low, high]: about five in 1-2-5 steps, or 1, 2 and 5 of each decade if logarithmic."""
    if is_log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        mantissas = (1, 2, 5) if high / low < 2000 else (1,)
        return [v for d in decades for m in mantissas if low <= (v := m * 10.0**d) <= high]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Return a number with three significant digits, for a tick or a table."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _grid(xs: _Scale, ys: _Scale) -> str:
    parts = []
    for value in ticks(xs.low, xs.high, xs.is_log):
        at = xs.at(value)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(value)}</text>'
        )
    for value in ticks(ys.low, ys.high, ys.is_log):
        at = ys.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{number(value)}</text>')
    return "".join(parts)


def _labels(x: Axis, y: Axis) -> str:
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<text class="label" x="{middle_x}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>'
        f'<text class="label" transform="translate(14 {middle_y}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )


def _limits(x: Axis, y: Axis, xs: _Scale, ys: _Scale) -> str:
    parts = []
    if x.limit:
        parts.append(f'<path class="limit" d="M{xs.at(x.limit):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
    if y.limit:
        parts.append(f'<path class="limit" d="M{LEFT} {ys.at(y.limit):.1f}H{WIDTH - RIGHT}"/>')
    return "".join(parts)


def _series(series: Series, index: int, xs: _Scale, ys: _Scale) -> str:
    places = [(xs.at(px), ys.at(py)) for px, py in series.points]
    parts = []
    if series.style != "dots":
        parts.append(f'<path class="line s{index}" d="{_path(places, series.style.startswith("step"))}"/>')
    if series.style.endswith("dots"):
        radius = 2 if len(places) > 100 else 3.5
        for i, (px, py) in enumerate(places):
            note = f"<title>{escape(series.notes[i])}</title>" if i < len(series.notes) else ""
            parts.append(f'<circle class="dot s{index}" cx="{px:.1f}" cy="{py:.1f}" r="{radius}">{note}</circle>')
    return "".join(parts)


def _path(places: Sequence[Point], is_step: bool) -> str:
    (x0, y0), *rest = places
    moves = [f"H{x:.1f}V{y:.1f}" if is_step else f"L{x:.1f} {y:.1f}" for x, y in rest]
    return f"M{x0:.1f} {y0:.1f}" + "".join(moves)


def _legend(shown: Sequence[Series]) -> str:
    if len(shown) < 2:
        return ""
    items = "".join(f'<li><i class="swatch s{i}"></i>{escape(s.name)}</li>' for i, s in enumerate(shown))
    return f'<ul class="legend">{items}</ul>'
