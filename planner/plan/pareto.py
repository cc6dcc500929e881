"""Picture of the Pareto front of cost and time per token: the configurations that no other beats in both.

HTML has inline SVG and needs nothing else; PNG needs matplotlib. The figures come from the report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from importlib import import_module
from math import floor, log10
from pathlib import Path

from ...server.errors import SettingsError
from .report import Candidate, PlanReport

WIDTH, HEIGHT = 960, 560
LEFT, RIGHT, TOP, BOTTOM = 90, 30, 20, 60
STEPS = (1, 2, 5)  # gridlines of each decade
X_LABEL = "time per output token, ms"


@dataclass(frozen=True, slots=True)
class PricedPoint:
    """A priced configuration: milliseconds per output token, dollars per million tokens in and out together."""

    tpot_ms: float
    usd: float
    candidate: Candidate

    @property
    def label(self) -> str:
        c = self.candidate
        group = f"{c.device} TP{c.tp} PP{c.pp} DP{c.dp}"
        name = f"{group} {c.dtype} batch {c.batch}, {c.instances} of it"
        behind = f"({c.known.decode.provenance})"
        figures = f"TPOT {self.tpot_ms:.1f} ms {behind}, TTFT {c.ttft_s * 1e3:.0f} ms, ${self.usd:.4g} per 1M tokens"
        return f"{name}: {figures}{''.join(f'; {miss}' for miss in c.misses)}"


def points(report: PlanReport) -> list[PricedPoint]:
    """Return the configurations that have a price by the report's basis and a time between tokens."""
    found = []
    for candidate in report.candidates:
        price = candidate.at_rate[report.options.price_basis]
        if price is not None and candidate.tpot_s > 0:
            found.append(PricedPoint(candidate.tpot_s * 1e3, price.total_usd, candidate))
    return found


def front(found: Iterable[PricedPoint]) -> list[PricedPoint]:
    """Return points that no faster point beats in cost, fastest first; only those within the limits, if any."""
    every = list(found)
    within = [point for point in every if point.candidate.meets_slo] or every
    best: list[PricedPoint] = []
    for point in sorted(within, key=lambda p: (p.tpot_ms, p.usd)):
        if not best or point.usd < best[-1].usd:
            best.append(point)
    return best


@dataclass(frozen=True, slots=True)
class _Axis:
    """Logarithmic axis: values from `low` to `high` over pixels from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def over(cls, values: Iterable[float], begin: float, end: float) -> _Axis:
        every = list(values)
        return cls(min(every) / 1.2, max(every) * 1.2, begin, end)

    def at(self, value: float) -> float:
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        decades = range(floor(log10(self.low)), floor(log10(self.high)) + 1)
        return [tick for d in decades for s in STEPS if self.low <= (tick := s * 10.0**d) <= self.high]


def svg(report: PlanReport) -> str:
    """Return the picture as one <svg> element. Raises SettingsError if no configuration has a price."""
    found = _priced(report)
    x = _Axis.over((point.tpot_ms for point in found), LEFT, WIDTH - RIGHT)
    y = _Axis.over((point.usd for point in found), HEIGHT - BOTTOM, TOP)
    line = front(found)
    path = " ".join(f"{x.at(point.tpot_ms):.1f},{y.at(point.usd):.1f}" for point in line)
    body = [
        *_grid(x, y, _y_label(report)),
        *(_dot(point, x, y, "within" if point.candidate.meets_slo else "missing") for point in found),
        f'<polyline class="front" points="{path}"/>',
        *(_dot(point, x, y, "best") for point in line),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return "\n".join([head, *body, "</svg>"])


def _priced(report: PlanReport) -> list[PricedPoint]:
    found = points(report)
    if not found:
        basis = report.options.price_basis
        raise SettingsError(
            f"there is nothing to draw: no configuration has both a price ({basis}) and a time per token"
        )
    return found


def _y_label(report: PlanReport) -> str:
    return f"$ per 1M tokens in and out, {report.options.price_basis}, at {report.options.request_rate:g} requests/s"


def _dot(point: PricedPoint, x: _Axis, y: _Axis, kind: str) -> str:
    where = f'cx="{x.at(point.tpot_ms):.1f}" cy="{y.at(point.usd):.1f}"'
    return (
        f'<circle class="{kind}" {where} r="{5 if kind == "best" else 3}"><title>{escape(point.label)}</title></circle>'
    )


def _grid(x: _Axis, y: _Axis, y_label: str) -> Iterable[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in x.ticks():
        at = f"{x.at(tick):.1f}"
        yield f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text x="{at}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>'
    for tick in y.ticks():
        at = f"{y.at(tick):.1f}"
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at}" y2="{at}"/>'
        yield f'<text x="{LEFT - 8}" y="{at}" text-anchor="end" dominant-baseline="middle">{tick:g}</text>'
    yield f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{X_LABEL}</text>'
    middle = (TOP + bottom) / 2
    turned = f'transform="rotate(-90 20 {middle})" text-anchor="middle"'
    yield f'<text x="20" y="{middle}" {turned}>{escape(y_label)}</text>'


_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222 }
svg { width: 100% } text { font-size: 12px; fill: #444 } .grid { stroke: #ddd } .within { fill: #4a7bb5; opacity: .45 }
.missing { fill: none; stroke: #999; opacity: .5 } .best { fill: #c0392b } .front { fill: none; stroke: #c0392b }
table { border-collapse: collapse } td, th { padding: .2em .8em; text-align: left; border-bottom: 1px solid #ddd }
"""


def html(report: PlanReport) -> str:
    """Return a page that loads nothing: the picture, the front as a table, and the report's notes."""
    o = report.options
    title = f"{o.model}: {o.input_tokens} tokens in, {o.output_tokens} out, {o.request_rate:g} requests/s"
    legend = "Red: nothing is both cheaper and faster. Blue: within the limits. Hollow: misses a limit. Point at a dot."
    best = "".join(f"<tr><td>{escape(point.label)}</td></tr>" for point in front(points(report)))
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{svg(report)}\n<p>{legend}</p>"
        f"\n<table><tr><th>Front, fastest first</th></tr>{best}</table>\n<ul>{notes}</ul></body></html>\n"
    )


def write_picture(report: PlanReport, path: Path) -> None:
    """Write the picture as PNG or HTML, by the ending of `path`.

    Raises SettingsError for another ending, a path that cannot be written, a report without prices, or PNG without
    matplotlib.
    """
    ending = path.suffix.lower()
    if ending not in (".png", ".html"):
        raise SettingsError(f"cannot draw {path}: the name must end in .png or .html")
    try:
        if ending == ".html":
            path.write_text(html(report), encoding="utf-8")
        else:
            _write_png(report, path)
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}") from error


def _write_png(report: PlanReport, path: Path) -> None:
    found = _priced(report)
    try:
        figure_class = import_module("matplotlib.figure").Figure  # without pyplot: no display, no global state
    except ImportError:
        raise SettingsError(
            f"cannot draw {path}: PNG needs matplotlib, which is not installed (the extra `bench` has it); "
            "a name that ends in .html needs nothing"
        ) from None
    figure = figure_class(figsize=(WIDTH / 100, HEIGHT / 100), layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log", xlabel=X_LABEL, ylabel=_y_label(report).replace("$", r"\$"))
    for kind, marks in (("within the limits", "o"), ("misses a limit", "x")):
        chosen = [point for point in found if point.candidate.meets_slo == (marks == "o")]
        axes.plot([p.tpot_ms for p in chosen], [p.usd for p in chosen], marks, markersize=3, alpha=0.5, label=kind)
    best = front(found)
    axes.plot([p.tpot_ms for p in best], [p.usd for p in best], "o-", color="#c0392b", label="front")
    axes.set_title(report.options.model.replace("$", r"\$"))
    axes.grid(True, which="both", color="#dddddd")
    axes.legend()
    figure.savefig(path, dpi=100, format="png")
