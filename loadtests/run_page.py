"""The report page of one run: one file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence

from neuronserve.loadtests import html_page as html
from neuronserve.loadtests.charts import run_charts
from neuronserve.loadtests.page_parts import Result, alerts, cost_tables, dollars, figure, lead, record_sections, title
from neuronserve.loadtests.records import RequestRecord
from neuronserve.server.workload.slo import Slo

LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "intended_ttft": "TTFT from intended start",
    "intended_e2el": "E2EL from intended start",
}


def run_page(result: Result, records: Sequence[RequestRecord], slo: Slo) -> str:
    """The page of one run."""
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
    """A row for each latency: mean, p50, p90, p95, p99."""
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
