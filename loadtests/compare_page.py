"""The report page of a comparison: one file that loads nothing."""

from __future__ import annotations

from html import escape
from math import log

from neuronserve.loadtests import html_page as html
from neuronserve.loadtests.page_parts import Result, alerts, figure, record_sections


def compare_page(result: Result) -> str:
    """The page of a comparison of two endpoints."""
    a, b = result["labels"]
    rows = [_ratio_row(name, ratio) for name, ratio in result["ratios"].items()]
    head = ("metric", f"A: {a}", f"B: {b}", "B / A", f"{100 * result['confidence']:.0f} % interval", "")
    note = (
        f"{result['num_rounds']} rounds, the same requests to both in each, taking turns to be first. A and B are "
        "medians over rounds; the ratio is the geometric mean of the rounds' ratios with its bootstrap interval."
    )
    parts = [
        *alerts(result),
        f'<p class="lead">{escape(note)}</p>',
        html.table(head, rows),
        html.section("Ratios B / A", _forest(result["ratios"])),
    ]
    for side in "ab" if result["runs"] else "":
        parts += [record_sections(result["runs"][0][side], f"Benchmark record of {side.upper()}")]
    return html.page(f"Comparison: {a} and {b}", f"scenario {result['scenario']}", parts)


def verdict(ratio: Result) -> str:
    """The better side, where the interval decides it."""
    if ratio["low"] <= 1 <= ratio["high"]:
        return "no difference shown"
    is_more = ratio["low"] > 1
    return "B better" if is_more == ratio["more_is_better"] else "A better"


def _ratio_row(name: str, ratio: Result) -> list[str]:
    interval = f"{ratio['low']:.3f} – {ratio['high']:.3f}"
    return [
        name.replace("_", " "),
        figure(ratio["a"]),
        figure(ratio["b"]),
        f"{ratio['ratio']:.3f}",
        interval,
        verdict(ratio),
    ]


def _forest(ratios: Result) -> str:
    """Chart of the ratios, each a dot with its interval, on one logarithmic scale."""
    if not ratios:
        return '<p class="none">no metric that both sides have</p>'
    from_, to = min(r["low"] for r in ratios.values()), max(r["high"] for r in ratios.values())
    low, high = min(from_, 0.8), max(to, 1.25)
    rows = "".join(_forest_row(name, ratio, (low, high)) for name, ratio in ratios.items())
    return f'<div class="card forest">{rows}</div>'


def _forest_row(name: str, ratio: Result, ends: tuple[float, float]) -> str:
    def at(value: float) -> float:
        return 100 * log(value / ends[0]) / log(ends[1] / ends[0])

    width = max(at(ratio["high"]) - at(ratio["low"]), 0.3)
    tone = {"B better": "good", "A better": "bad"}.get(verdict(ratio), "even")
    name = escape(name.replace("_", " "))
    bar = f"left:{at(ratio['low']):.2f}%;width:{width:.2f}%"
    return (
        f'<div><span>{name}</span><div class="track"><i class="one" style="left:{at(1):.2f}%"></i>'
        f'<i class="bar {tone}" style="{bar}"></i><i class="mark {tone}" style="left:{at(ratio["ratio"]):.2f}%"></i>'
        f"</div><span>{ratio['ratio']:.3f}</span></div>"
    )
