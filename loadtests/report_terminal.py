"""Reports for the terminal: of a run, a sweep and a comparison, as rich tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from .page_parts import alert_texts, dollars, figure, title
from .pages import LATENCIES, verdict
from .svg import number

Result = dict[str, Any]


def print_run(result: Result, console: Console) -> None:
    """Print counts, throughput, latencies, failures, cost, and the generator's lateness."""
    table = Table(title=title(result), title_justify="left")
    for column in ("", "mean", "p50", "p90", "p95", "p99"):
        table.add_column(column, justify="left" if not column else "right")
    for key, name in LATENCIES.items():
        cells = [figure(result[f"{c}_{key}_ms"]) for c in ("mean", "median", "p90", "p95", "p99")]
        table.add_row(f"{name}, ms", *cells)
    console.print(table)
    for line in run_lines(result):
        console.print(line, highlight=False, markup=False)


def run_lines(result: Result) -> list[str]:
    """Return lines of text beside the tables, one sentence each."""
    lines = [
        f"{result['completed']} of {result['num_requests']} requests completed in {result['duration']:.1f} s: "
        f"{figure(result['request_throughput'])} requests/s, {figure(result['output_throughput'])} output tokens/s, "
        f"{figure(result['total_token_throughput'])} tokens/s in all",
        f"input {result['total_input_tokens']:,} tokens, of them {result['total_cached_input_tokens']:,} from the "
        f"prefix cache; output {result['total_output_tokens']:,} tokens",
    ]
    if result["request_goodput"] is not None:
        share = 100 * (result["good_fraction"] or 0)
        lines.append(
            f"goodput {figure(result['request_goodput'])} requests/s: {share:.1f} % of requests within all limits"
        )
    for kind, count in result["errors_by_kind"].items():
        lines.append(f"failed, {kind}: {count}, such as: {result['error_examples'].get(kind, '')}")
    lines += [_cost_line(name, account) for name, account in result["cost"].items()]
    generator = result["generator"]
    lines.append(
        f"generator: send lag p99 {generator['send_lag_p99_ms']:.2f} ms, event loop lag p99 "
        f"{generator['loop_lag_p99_ms']:.2f} ms, {generator['cpu_percent_of_one_core']:.0f} % of one core"
    )
    return lines


def print_sweep(result: Result, console: Console) -> None:
    """Print the points by rate, then the knee."""
    table = Table(title=f"sweep of {result['scenario']}", title_justify="left")
    for column in ("req/s offered", "done", "goodput", "good %", "out tok/s", "TTFT p99", "TPOT p99", "$/1M out"):
        table.add_column(column, justify="right")
    for p in result["points"]:
        keys = ("request_rate", "request_throughput", "request_goodput")
        cost = p["cost_per_million_output_tokens_usd"]
        cells = [figure(p[key]) for key in keys] + [f"{100 * (p['good_fraction'] or 0):.1f}"]
        cells += [figure(p[key]) for key in ("output_throughput", "p99_ttft_ms", "p99_tpot_ms")]
        table.add_row(*cells, "–" if cost is None else dollars(cost))
    console.print(table)
    knee = result["knee"]
    if knee is None:
        console.print("knee: no rate that was tried met the limits", highlight=False)
        return
    failed = result["lowest_failed_rate"]
    upper = "no higher rate was tried" if failed is None else f"{number(failed)} req/s does not hold"
    cost = knee["cost_per_million_output_tokens_usd"]
    price = "" if cost is None else f", {dollars(cost)} per 1M output tokens ({knee['cost_basis']})"
    console.print(f"knee: {number(knee['request_rate'])} req/s holds, {upper}{price}", highlight=False, markup=False)


def print_compare(result: Result, console: Console) -> None:
    """Print a row for each metric: both sides, the ratio and its interval."""
    a, b = result["labels"]
    table = Table(title=f"A: {a}   B: {b}   {result['num_rounds']} rounds", title_justify="left")
    interval = f"{100 * result['confidence']:.0f} % interval"
    for column in ("metric", "A", "B", "B / A", interval, ""):
        table.add_column(column, justify="left" if column in {"metric", ""} else "right")
    for name, r in result["ratios"].items():
        cells = (figure(r["a"]), figure(r["b"]), f"{r['ratio']:.3f}", f"{r['low']:.3f} – {r['high']:.3f}", verdict(r))
        table.add_row(name.replace("cost_per_million_output_tokens_usd", "$ per 1M output"), *cells)
    console.print(table)


def print_alerts(result: Result, console: Console) -> None:
    """Print warnings about the result."""
    for text in alert_texts(result):
        console.print(text, style="bold red", highlight=False, markup=False)


def _cost_line(name: str, account: Result) -> str:
    if not account["available"]:
        return f"cost, {name}: not available, {account['reason']}"
    keys = ("input", "output", "total")
    cells = [f"{kind} {_dollars(account[f'cost_per_million_{kind}_tokens_usd'])}" for kind in keys]
    return f"cost per 1M tokens, {name}: {', '.join(cells)} ({account['basis']})"


def _dollars(value: float | None) -> str:
    return "–" if value is None else dollars(value)
