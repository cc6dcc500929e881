"""A plan as tables for a terminal. Formats only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.table import Table

from server.device.prices import PriceBasis
from server.models.tensors import num_params
from server.planner.plan import runs
from server.planner.plan.check import Agreement
from server.planner.plan.report import Candidate, Excluded, PlanReport, TokenPrice

NUM_ROWS = 20  # of each table, by default


def render(report: PlanReport, num_rows: int = NUM_ROWS) -> Group:
    """The best batch of each device, degree and weight type: within the limits, then not; then what cannot be had."""
    best = best_batches(report.candidates)
    meeting = [candidate for candidate in best if candidate.meets_slo]
    missing = [candidate for candidate in best if not candidate.meets_slo]
    parts: list[Table | str] = [_heading(report)]
    if meeting:
        parts += [
            _candidates(report, meeting[:num_rows], "Within the limits, cheapest first"),
            _more(meeting, num_rows),
        ]
    if missing:
        parts += [_misses(report, missing[:num_rows]), _more(missing, num_rows)]
    if report.excluded:
        parts += [_excluded(report.excluded[:num_rows]), _more(report.excluded, num_rows)]
    parts += [*runs.notes(report, [*meeting[:num_rows], *missing[:num_rows]]), *report.notes]
    return Group(*(part for part in parts if part))


def best_batches(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first, which is the best, of each device, degree and type; batches are variations of it."""
    found: dict[tuple[object, ...], Candidate] = {}
    for row in candidates:
        found.setdefault((row.device, row.lnc, row.instances_per_replica, row.tp, row.pp, row.dtype), row)
    return list(found.values())


def _heading(report: PlanReport) -> str:
    options = report.options
    limits = [f"{limit.name} at most {limit.seconds * 1e3:g} ms" for limit in options.limits]
    return (
        f"{options.model} ({num_params(report.model) / 1e9:.2f}B parameters): {_requests(report)}, "
        f"{options.request_rate:g} requests/s; {', '.join(limits) or 'no limits'}\n"
        f"stack {options.stack or 'of the part today'}, compiled for prompts of {report.buckets.prefill} and slots of "
        f"{report.buckets.decode} positions; "
        f"calibration {report.calibration}"
    )


def _requests(report: PlanReport) -> str:
    demand = report.demand
    if demand.trace is None:
        return f"{report.options.input_tokens} tokens in, {report.options.output_tokens} out"
    means = f"means of {demand.input_tokens:.0f} tokens in, {demand.output_tokens:.0f} out"
    return f"{len(demand.trace)} requests of {demand.trace.name}, {means}"


def _candidates(report: PlanReport, rows: Iterable[Candidate], title: str) -> Table:
    basis = report.options.price_basis
    table = Table(title=title)
    verdicts = report.verdicts
    for column in ("device", "TP", "PP", "DP", "weights", "batch", "runs"):
        table.add_column(column, no_wrap=True)
    other: PriceBasis = "reserved" if basis == "on_demand" else "on_demand"
    priced = ("$/h", f"{other} $/h", "$/1M in", "$/1M out", "full: $/1M out")
    for column in ("GiB/core", "TTFT ms", "TPOT ms", "load", "max tok/s", "count", *priced):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            report.label(row) + "*" * bool(row.extrapolated),
            *map(str, (row.tp, row.pp, row.dp, row.dtype, row.batch)),
            runs.WORDS[verdicts[row.place].outcome],
            f"{row.memory_bytes / 2**30:.1f}",
            f"{row.ttft_s * 1e3:.0f}",
            f"{row.tpot_s * 1e3:.1f}",
            f"{row.load:.0%}",
            f"{row.saturated_output_tokens_s:.0f}",
            str(row.instances),
            *_dollars(row.at_rate[basis], row.at_rate[other]),
            _money(None if (full := row.at_capacity[basis]) is None else full.output_usd),
        )
    table.caption = f"$ by the {basis} price unless another is named; full: an instance as loaded as the limits allow"
    table.caption += f"\n{runs.CAPTION}"
    return table


def _dollars(price: TokenPrice | None, other: TokenPrice | None) -> tuple[str, str, str, str]:
    """An hour, an hour by the other price, a million tokens in and out."""
    hourly = _money(None if other is None else other.hourly_usd)
    if price is None:
        return "unknown", hourly, "unknown", "unknown"
    return _money(price.hourly_usd), hourly, _money(price.input_usd), _money(price.output_usd)


def _money(usd: float | None) -> str:
    return "unknown" if usd is None else f"{usd:.2f}" if usd >= 1 else f"{usd:.4f}"


def _misses(report: PlanReport, rows: Iterable[Candidate]) -> Table:
    verdicts = report.verdicts
    table = Table(
        "device", "TP", "PP", "DP", "weights", "batch", "runs", "why not", title="Fits, but misses the limits"
    )
    for row in rows:
        name = report.label(row) + "*" * bool(row.extrapolated)
        numbers = map(str, (row.tp, row.pp, row.dp, row.dtype, row.batch))
        table.add_row(name, *numbers, runs.WORDS[verdicts[row.place].outcome], "; ".join(row.misses))
    return table


def _excluded(rows: Iterable[Excluded]) -> Table:
    table = Table("device", "TP", "PP", "weights", "why not", title="Cannot be had")
    for row in rows:
        table.add_row(row.device, str(row.tp or "any"), str(row.pp), row.dtype or "any", row.reason)
    return table


def _more(rows: Iterable[object], shown: int) -> str:
    left = len(list(rows)) - shown
    return f"... and {left} more" if left > 0 else ""


def render_check(check: Sequence[Agreement]) -> Table | str:
    """Table of the chosen configuration, planned beside simulated."""
    if not check:
        return "nothing to simulate: no configuration holds the limits, or the first has what is not simulated"
    table = Table("mean", "planned", "simulated", "plan is off by", title="The first row, simulated")
    for one in check:
        table.add_row(one.name, f"{one.planned:.4g}", f"{one.simulated:.4g}", f"{one.error:+.1%}")
    return table
