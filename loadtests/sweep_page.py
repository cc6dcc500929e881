"""The report page of a sweep: one file that loads nothing."""

from __future__ import annotations

from neuronserve.loadtests import html_page as html
from neuronserve.loadtests.charts import sweep_charts
from neuronserve.loadtests.page_parts import Result, alerts, cost_tables, dollars, figure, lead, record_sections, title
from neuronserve.loadtests.svg import number
from neuronserve.server.workload.slo import Slo


def sweep_page(result: Result, slo: Slo) -> str:
    """The page of a sweep; the record is that of its knee, or of its first point."""
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
