"""Report pages of a run, a sweep and a comparison: each is one file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log

from ..workload.slo import Slo
from . import html_page as html
from .charts import run_charts, sweep_charts
from .page_parts import Result, alerts, cost_tables, dollars, figure, lead, record_sections, title
from .records import RequestRecord
from .svg import number

LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "intended_ttft": "TTFT from intended start",
    "intended_e2el": "E2EL from intended start",
}


def run_page(result: Result, records: Sequence[RequestRecord], slo: Slo) -> str:
    """Return the page of one run."""
    parts = [
        *alerts(result),
        html.tiles(_run_tiles(result)),
        html.section("Latency, milliseconds", latency_table(result)),
        html.section("Distributions and time", html.cards(run_charts(records, slo))),
        html.section("Cost per token", *cost_tables(result["cost"])),
        _failures(result),
        record_sections(result),
    ]
    return html.page(f"Load test: {title(result)}", lead(result), parts)


def latency_table(result: Result) -> str:
    """Return a table with a row for each latency: mean, p50, p90, p95, p99."""
    columns = ("mean", "median", "p90", "p95", "p99")
    rows = [[name, *(figure(result[f"{c}_{key}_ms"]) for c in columns)] for key, name in LATENCIES.items()]
    return html.table(("", "mean", "p50", "p90", "p95", "p99"), rows)


def _run_tiles(result: Result) -> list[tuple[str, str, str]]:
    cost = result["cost_per_million_output_tokens_usd"]
    goodput = result["request_goodput"]
    failed = f"{result['failed']} of {result['num_requests']} failed"
    items = [
        ("requests/s", figure(result["request_throughput"]), f"{result['completed']} completed, {failed}"),
        ("output tokens/s", figure(result["output_throughput"]), f"{result['total_output_tokens']:,} tokens"),
        ("TTFT p50 / p99", _pair(result, "ttft"), "milliseconds"),
        ("TPOT p50 / p99", _pair(result, "tpot"), "milliseconds"),
    ]
    if goodput is not None:
        items.append(
            ("goodput, requests/s", figure(goodput), f"{100 * result['good_fraction']:.1f} % within the limits")
        )
    if cost is not None:
        items.append(("$ per 1M output tokens", dollars(cost), result["cost_basis"]))
    return items


def _pair(result: Result, name: str) -> str:
    return f"{figure(result[f'median_{name}_ms'])} / {figure(result[f'p99_{name}_ms'])}"


def _failures(result: Result) -> str:
    if not result["errors_by_kind"]:
        return ""
    rows = [
        [f"{kind}: {result['error_examples'].get(kind, '')}", str(count)]
        for kind, count in result["errors_by_kind"].items()
    ]
    return html.section("Failures by kind", html.table(("kind, and one message", "requests"), rows))


def sweep_page(result: Result, slo: Slo) -> str:
    """Return the page of a sweep, with the record of its knee or of its first point."""
    points = result["points"]
    shown = next(
        (p for p in points if result["knee"] and p["request_rate"] == result["knee"]["request_rate"]), points[0]
    )
    head = (
        "rate",
        "req/s",
        "goodput",
        "good %",
        "out tok/s",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "TPOT p99",
        "$/1M out",
    )
    parts = [
        *alerts(result),
        html.tiles(_sweep_tiles(result, slo)),
        html.section("Curves", html.cards(sweep_charts(result, slo))),
        html.section("Points", html.table(head, [_point_row(p) for p in points])),
        html.section("Cost per token at the knee" if result["knee"] else "Cost per token", *cost_tables(shown["cost"])),
        record_sections(shown),
    ]
    return html.page(f"Sweep: {title(shown)}", lead(shown), parts)


def _sweep_tiles(result: Result, slo: Slo) -> list[tuple[str, str, str]]:
    knee = result["knee"]
    if knee is None:
        return [("knee", "none", "no rate that was tried met the limits")]
    remark = "next failure not found" if result["lowest_failed_rate"] is None else "and fails at "
    remark += "" if result["lowest_failed_rate"] is None else f"{number(result['lowest_failed_rate'])} req/s"
    items = [
        ("highest rate within limits", f"{number(knee['request_rate'])} req/s", remark),
        ("goodput there", f"{number(knee['request_goodput'])} req/s", f"{100 * slo.attainment:g} % must be good"),
        ("output tokens/s there", figure(knee["output_throughput"]), "at the knee"),
    ]
    if knee["cost_per_million_output_tokens_usd"] is not None:
        items.append(
            ("$ per 1M output tokens", dollars(knee["cost_per_million_output_tokens_usd"]), knee["cost_basis"])
        )
    return items


def _point_row(point: Result) -> list[str]:
    keys = ("request_throughput", "request_goodput", "output_throughput")
    done, good, tokens = (figure(point[key]) for key in keys)
    latencies = [figure(point[key]) for key in ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms")]
    share = f"{100 * point['good_fraction']:.1f}"
    cost = point["cost_per_million_output_tokens_usd"]
    return [
        number(point["request_rate"]),
        done,
        good,
        share,
        tokens,
        *latencies,
        "–" if cost is None else dollars(cost),
    ]


def compare_page(result: Result) -> str:
    """Return the page of a comparison."""
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
    """Return the better side, if the interval decides it."""
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
    """Return a chart of the ratios, each a dot with its interval, on one logarithmic scale."""
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
