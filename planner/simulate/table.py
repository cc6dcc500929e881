"""A simulation report as tables for a terminal. Formats only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...server.clock import NS
from .report import SimulationReport
from .sampling import CONFIDENCE, Estimate, Sample
from .scaling import Scaling

_TIMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2el": "end-to-end latency",
    "queue": "wait for the first step",
}

MOST_SHARES = 8  # numbers of replicas with their share of the time; JSON has all
FIGURES = ("mean", "p50", "p90", "p95", "p99")


def render(report: SimulationReport) -> Group:
    """Return throughput, times and cost, and a warning if no measurement supports the prediction."""
    parts: list[Table | Text | str] = [_load(report), _times(report), _cost(report)]
    if report.options.slo.is_set:
        parts.insert(2, _limits(report))
    if report.overload is not None:
        parts.insert(0, Text(report.overload.sentence, style="bold red"))
    if report.scaling is not None:
        parts.append(_scaling(report, report.scaling))
    if (failures := report.failures_json()) is not None:
        parts.append(_failures(failures))
    if report.extrapolated:
        parts.append(f"EXTRAPOLATED, no measurement supports these figures: {'; '.join(report.extrapolated)}")
    return Group(*parts)


def _load(report: SimulationReport) -> Table:
    options, figures = report.options, report.as_json()
    table = Table(title=_title(report), title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("workload", options.workload.name)
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(report.records.refused.items()))
    table.add_row("completed", f"{report.completed:,}")
    table.add_row("refused", reasons or "0")
    for what, count in (("cut", options.workload.num_cut), ("dropped", options.workload.num_dropped)):
        if count:
            table.add_row(f"{what}, being longer than {options.max_model_len:,} tokens", f"{count:,}")
    table.add_row("duration", f"{report.duration_s:,.1f} s")
    table.add_row("requests", f"{figures['request_throughput']:,.2f} /s")
    if report.request_goodput is not None:
        table.add_row("requests within the limits", f"{report.request_goodput:,.2f} /s")
    low, high = report.bands["output_throughput"]
    table.add_row("output tokens", f"{figures['output_throughput']:,.1f} /s")
    table.add_row("output tokens, P10-P90", f"{low:,.1f}-{high:,.1f} /s")
    table.add_row("all tokens", f"{figures['total_token_throughput']:,.1f} /s")
    table.add_row("input tokens from the prefix cache", f"{figures['total_cached_tokens']:,}")
    table.add_row("preemptions", f"{figures['num_preemptions']:,}")
    return table


def _title(report: SimulationReport) -> str:
    options = report.options
    groups = f"DP{options.data_parallel_size} x " if options.data_parallel_size > 1 else ""
    scaling = options.autoscaling
    replicas = options.replicas if scaling.is_fixed else f"{scaling.min_replicas} to {scaling.max_replicas}"
    return (
        f"{options.model.architecture} on {replicas} x {options.instance}, {groups}"
        f"TP{options.tensor_parallel_size}, {options.max_num_seqs} slots of {options.max_model_len} tokens"
    )


def _times(report: SimulationReport) -> Table:
    table = Table("ms", title="Times")
    for column in ("mean", "P10-P90 of the mean", "median", "p90", "p95", "p99"):
        table.add_column(column, justify="right")
    for name, spread in report.spreads.items():
        mean, *figures = (spread.mean, spread.median, spread.p90, spread.p95, spread.p99)
        ends = report.bands.get(f"mean_{name}_ms")
        band = "" if ends is None else f"{ends[0]:,.2f}-{ends[1]:,.2f}"
        table.add_row(_TIMES[name], f"{mean:,.2f}", band, *(f"{figure:,.2f}" for figure in figures))
    return table


def _limits(report: SimulationReport) -> Table:
    table = Table("limit", "ms", "requests within", title="Limits: which of the figures keep them")
    for figure in FIGURES:
        table.add_column(figure, justify="right")
    for name, limit in report.limits().items():
        kept = ("yes" if limit[figure] else "no" for figure in FIGURES)
        table.add_row(_TIMES[name], f"{limit['limit_ms']:g}", f"{limit['attainment']:.2%}", *kept)
    return table


def _scaling(report: SimulationReport, scaling: Scaling) -> Table:
    scaling_options = report.options.autoscaling
    title = f"Replicas: {scaling_options.autoscale}, {scaling_options.min_replicas} to {scaling_options.max_replicas}"
    table = Table(title=title, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("ready, mean and most", f"{scaling.mean_ready:.2f}, {max(scaling.share_of_time, default=0)}")
    table.add_row("launched", f"{len(report.fleet.replicas)}")
    table.add_row("from launch to ready", f"{report.fleet.startup_ns / NS:,.1f} s")
    table.add_row("paid", f"{report.bill.replica_hours:,.3f} h")
    if report.options.slo.is_set:
        table.add_row("missed a limit", f"{(~report.is_good).sum():,}")
        table.add_row("of them came while a replica was starting", f"{report.num_missed_while_starting:,}")
    longest = sorted(scaling.share_of_time.items(), key=lambda item: -item[1])[:MOST_SHARES]
    for ready, share in sorted(longest):
        table.add_row(f"share of time with {ready} ready", f"{share:.1%}")
    return table


def _failures(figures: Mapping[str, Any]) -> Table:
    table = Table(title="Failures", show_header=False)
    ends = ", ".join(f"{count:,} {kind}" for kind, count in figures["ends"].items())
    table.add_row("instances that ended", ends or "0")
    table.add_row("requests that moved", f"{figures['moved_requests']:,} with {figures['moved_tokens']:,} tokens")
    pauses = (figures[f"{name}_pause_ms"] for name in ("median", "p99", "longest"))
    table.add_row("pause of a stream, median, p99, longest", ", ".join(f"{each:,.0f}" for each in pauses) + " ms")
    table.add_row("paid, and of that on spot", f"{figures['replica_hours']:,.1f}, {figures['spot_hours']:,.1f} h")
    return table


def render_sample(sample: Sample, figures: Mapping[str, Estimate]) -> Table:
    """Return the figures of a sampled deployment with their intervals: of times the mean and p99, JSON has all."""
    title = f"{sample.num_slices} of {sample.num_all} slices; with {CONFIDENCE:.0%} the whole is within +-"
    table = Table("the whole", title=title)
    for column in ("", "+-", "%"):
        table.add_column(column, justify="right")
    for name, found in figures.items():
        if not name.startswith(("median_", "std_", "p90_", "p95_")):
            share = f"{found.half / abs(found.value):.1%}" if found.value else ""
            table.add_row(name.replace("_", " "), _digits(found.value), _digits(found.half), share)
    return table


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _cost(report: SimulationReport) -> Table:
    cost, figures = report.cost, report.as_json()
    table = Table(title=f"Cost at {figures['usd_per_hour']:.4f} $/h an instance ({figures['price_basis']})")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("total", f"{cost.total_usd:,.4f} $")
    table.add_row("used by requests", f"{cost.attributed_usd:,.4f} $")
    table.add_row("idle", f"{cost.idle_usd:,.4f} $")
    table.add_row("utilization", f"{report.utilization:.1%}")
    table.add_row("busy slots of a decode step", f"{report.mean_decode_batch:.1f} of {report.options.max_num_seqs}")
    for what, key in (
        ("1M input tokens", "usd_per_million_input_tokens"),
        ("1M output tokens", "usd_per_million_output_tokens"),
        ("1M output tokens, everything on them", "usd_per_million_output_tokens_all_in"),
    ):
        table.add_row(what, "-" if figures[key] is None else f"{figures[key]:,.4f} $")
    return table
