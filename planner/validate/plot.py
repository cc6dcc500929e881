"""Picture of predicted against published times, with the band of each prediction, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log10

from ..calibrate.comparison import Figure, phase_of

SIZE, MARGIN = 440.0, 50.0  # of the square with the points, and of the space for labels, in pixels
DECADES = (-0.5, 4.7)  # axes from 0.3 ms to 50 s
COLOURS = {
    "decode": "#00897b",
    "prefill": "#ef6c00",
    "encode": "#c2185b",
    "serving_ttft": "#8e5cc2",
    "serving_itl": "#3f7fd0",
}
OTHER = "#6d4c41"
SHADE = log10(1.2)  # half of the shaded stripe: 20 %
INK, PAPER, FAINT, STRIPE, LINE = (  # of the page that the picture is in; else dark on white
    *("var(--ink, #222)", "var(--paper, #fff)", "var(--faint, #ddd)", "var(--shade, #eee)", "var(--line, #999)"),
)


def drawn(figures: Sequence[Figure]) -> str:
    """Return the picture: both axes logarithmic, a diagonal, a stripe of 20 % around it, a line for each band."""
    times = sorted((each for each in figures if each.unit == "ms"), key=lambda each: (each.group, each.row_id))
    size = SIZE + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size:g} {size:g}" width="{size:g}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{size:g}" height="{size:g}" fill="{PAPER}"/>',
        *_frame(),
        *(_band(each) for each in times if each.band is not None),
        *(_point(each) for each in times),
        *_legend(times),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _frame() -> Iterator[str]:
    first, last = (10.0**decade for decade in DECADES)
    low, high = 10.0**-SHADE, 10.0**SHADE
    corners = ((first, first * high), (last / high, last), (last, last), (last, last * low), (first / low, first))
    places = " ".join(f"{_x(x)},{_y(y)}" for x, y in (*corners, (first, first)))
    yield f'<polygon points="{places}" fill="{STRIPE}"/>'
    yield f'<path d="M{_x(first)},{_y(first)}L{_x(last)},{_y(last)}" stroke="{LINE}" fill="none"/>'
    for decade in range(5):
        ms = 10.0**decade
        label = f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"
        grid = f"M{_x(ms)},{_y(first)}V{_y(last)}M{_x(first)},{_y(ms)}H{_x(last)}"
        yield f'<path d="{grid}" stroke="{FAINT}" fill="none"/>'
        yield f'<text x="{_x(ms)}" y="{SIZE + MARGIN + 16:g}" text-anchor="middle">{label}</text>'
        yield f'<text x="{MARGIN - 4:g}" y="{_y(ms)}" text-anchor="end">{label}</text>'
    middle = MARGIN + SIZE / 2
    yield f'<text x="{middle:g}" y="{SIZE + MARGIN + 36:g}" text-anchor="middle">published</text>'
    yield f'<text x="{MARGIN:g}" y="{MARGIN - 10:g}">predicted</text>'


def _band(figure: Figure) -> str:
    low, high = (0.0, 0.0) if figure.band is None else (figure.band.low, figure.band.high)
    ends = f"M{_x(figure.predicted * low)},{_y(figure.predicted)}H{_x(figure.predicted * high)}"
    return f'<path d="{ends}" stroke="{_colour(figure)}" stroke-opacity="0.35" fill="none"/>'


def _point(figure: Figure) -> str:
    ring = "" if figure.is_seen else f' stroke="{INK}"'
    times = f"{figure.measured:.3g} ms, {figure.predicted:.3g} ms predicted"
    title = escape(f"{figure.series}, {figure.label}: {times}")
    place = f'cx="{_x(figure.measured)}" cy="{_y(figure.predicted)}"'
    return f'<circle {place} r="3" fill="{_colour(figure)}" fill-opacity="0.6"{ring}><title>{title}</title></circle>'


def _legend(times: Sequence[Figure]) -> Iterator[str]:
    y = MARGIN + 20
    for phase in dict.fromkeys(phase_of(each.group) for each in times):
        count = sum(phase_of(each.group) == phase for each in times)
        yield f'<circle cx="{MARGIN + 16:g}" cy="{y - 4:g}" r="4" fill="{COLOURS.get(phase, OTHER)}"/>'
        yield f'<text x="{MARGIN + 26:g}" y="{y:g}">{count} times of {phase}</text>'
        y += 18
    notes = ["shaded: within 20 %; lines: P10 to P90"]
    notes += ["ringed: not seen by the fit"] * any(not each.is_seen for each in times)
    for note in notes:
        yield f'<text x="{MARGIN + 10:g}" y="{y:g}">{note}</text>'
        y += 18


def _colour(figure: Figure) -> str:
    return COLOURS.get(phase_of(figure.group), OTHER)


def _x(ms: float) -> str:
    return f"{MARGIN + _share(ms) * SIZE:.1f}"


def _y(ms: float) -> str:
    return f"{MARGIN + (1 - _share(ms)) * SIZE:.1f}"


def _share(ms: float) -> float:
    """Place on an axis, from 0 to 1; beyond its ends at them."""
    return min(max((log10(ms) - DECADES[0]) / (DECADES[1] - DECADES[0]), 0.0), 1.0)
