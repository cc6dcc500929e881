"""First lines of a plan: the recommendation, its evidence, and the command that tries it on this host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from ...server.cost.evidence import Band
from ...server.models.public import candidates
from ...server.models.tensors import num_params
from .bounds import MIN_CONFIDENCE
from .check import why_not_simulated
from .columns import band, dollars, figure, milliseconds
from .report import Candidate, PlanReport
from .weight_types import QUANTIZATION

COMMAND_WIDTH = 76  # longest line of the command, for a terminal of 80 columns
MOST_ENGINES = 64  # of the server's settings


def first_lines(report: PlanReport) -> Iterator[str]:
    """Yield what to take, then whether it runs and its blockers, then its times with the evidence.

    If no row holds the limits, the first line has those that the first row misses.
    """
    row, known = report.candidates[0], report.candidates[0].known
    if row.meets_slo:
        yield f"Take {_shape(report, row)}: {_cost(report, row)}."
    else:
        misses = "; ".join(row.misses)
        yield f"No configuration holds the limits. The first ({misses}): {_shape(report, row)}: {_cost(report, row)}."
    yield row.running.sentence
    times = (
        f"TTFT {milliseconds(row.ttft_s)} ms (P10-P90 {band(*known.ttft_s)}), TPOT {milliseconds(row.tpot_s)} ms "
        f"({band(*known.tpot_s)})."
    )
    simulation = f" {verdict(report, row)}" * row.meets_slo
    yield f"{times}{simulation} TPOT {evidence(known.decode)}; TTFT {evidence(known.prefill)}."
    if other := _cheaper(report, row):
        yield f"Cheaper, but less is known: {_shape(report, other)}: {_cost(report, other)}. {other.running.sentence}"


def _cheaper(report: PlanReport, row: Candidate) -> Candidate | None:
    """Return the cheapest row within the limits that is cheaper than the first, but for a reported failure."""
    basis = report.options.price_basis
    price = row.at_rate[basis]
    if price is None or not row.meets_slo:
        return None
    others = [
        (found.hourly_usd, i)
        for i, other in enumerate(report.candidates)
        if other.meets_slo and other.running.runs != "no" and (found := other.at_rate[basis]) is not None
    ]
    usd, first = min(others, default=(price.hourly_usd, 0))
    return report.candidates[first] if usd < price.hourly_usd else None


def verdict(report: PlanReport, row: Candidate) -> str:
    """Return what the simulation of a row found, or why there is none."""
    found = row.simulated
    if found is None:
        return f"Not simulated: {why_not_simulated(report, row) or 'only the formulas were asked'}."
    times = ((name, each) for name, each in (("TTFT", found.ttft_s), ("TPOT", found.tpot_s)) if each.mean)
    figures = ", ".join(f"{name} {'/'.join(milliseconds(s) for s in (t.p50, t.p95, t.p99))} ms" for name, t in times)
    part = f" on {found.instances} of {row.instances} instances" * (found.instances < row.instances)
    spare = 1 - max(found.used.values(), default=1.0)
    held = "; ".join(found.misses) or (f"holds the limits, {spare:.1%} to spare" if found.used else "without limits")
    return f"Simulated ({found.requests} requests{part}), p50/p95/p99: {figures}: {held}."


def evidence(known: Band) -> str:
    """Return the evidence for a time: `measured: 28 rows, nearest Llama-3-8B TP8 batch 32 on Inferentia2`."""
    rows = f"{known.num_rows} row{'s' * (known.num_rows != 1)}"
    how = "by formula" if known.provenance == "formula" else known.provenance
    return f"{how}: {rows}, nearest {known.nearest}" if known.nearest else how


def _cost(report: PlanReport, row: Candidate) -> str:
    price = row.at_rate[report.options.price_basis]
    if price is None:
        return f"no price is known{_counts(row)}"
    return f"${dollars(price.hourly_usd)} an hour, ${figure(price.output_usd)} per 1M output tokens{_counts(row)}"


def _shape(report: PlanReport, row: Candidate) -> str:
    stages = f" x PP{row.pp}" * (row.pp > 1)
    label, each = report.label(row), row.instances_per_replica
    places = f"{row.instances // each} x {f'({label})' if each > 1 else label}"
    return f"{places}, each {row.dp} x TP{row.tp}{stages} of {row.batch} slots in {row.dtype} on {row.stack}"


def _counts(row: Candidate) -> str:
    slow = f", sized at P{row.sized_at * 100:g} of the step times" * (row.sized_at > MIN_CONFIDENCE)
    return slow + _range(row)


def _range(row: Candidate) -> str:
    low, high = row.known.instances
    if low == high == row.instances:
        return ""
    if high is None:
        return "; at P90 no number of instances holds the limits" if row.meets_slo else ""
    return f"; {low or 1} to {high} instances by P10-P90"


def serve_command(report: PlanReport) -> str:
    """Return the `neuronserve serve` command of the first row, in lines; empty if the server cannot run the row."""
    row = report.candidates[0]
    if why_not_simulated(report, row) or row.dp > MOST_ENGINES:
        return ""
    lines = [f"neuronserve serve {_checkpoint(report.options.model)}"]
    for words in _flags(report, row):
        if len(lines[-1]) + len(words) > COMMAND_WIDTH:
            lines.append("   ")
        lines[-1] += f" {words}"
    return " \\\n".join(lines)


def _checkpoint(model: str) -> str:
    """Return a path or hub id as a shell word; a variable if the plan knows only dimensions."""
    if "/" in model or Path(model).expanduser().exists():
        return quote(model)
    public = candidates(model)
    return quote(public[0].hub_id) if public else '"$MODEL"'


def _flags(report: PlanReport, row: Candidate) -> Iterator[str]:
    yield f"--device {row.device}"
    yield f"--tensor-parallel-size {row.tp}"
    if row.dp > 1:
        yield f"--data-parallel-size {row.dp}"
    if (quantization := QUANTIZATION[row.dtype]) is not None:
        yield f"--quantization {quantization}"
    yield f"--max-num-seqs {row.batch}"
    yield f"--max-model-len {report.buckets.decode}"
    yield f"--stack {row.stack}"
    yield "--pace device"


def question(report: PlanReport) -> str:
    """Return the planned workload, its limits and the calibration."""
    options = report.options
    limits = [f"{limit.name} at most {limit.seconds * 1e3:g} ms" for limit in options.limits]
    if options.usd_per_hour is not None:
        limits.append(f"at most ${options.usd_per_hour:g} an hour")
    return (
        f"{options.model} ({num_params(report.model) / 1e9:.2f}B parameters): {_requests(report)}, "
        f"{options.request_rate:g} requests/s; {', '.join(limits) or 'no limits'}; "
        f"stack {options.stack or 'of each instance today'}; up to {report.buckets.decode} "
        f"positions; calibration {report.calibration}"
    )


def _requests(report: PlanReport) -> str:
    demand = report.demand
    if demand.trace is None:
        return f"{report.options.input_tokens} tokens in, {report.options.output_tokens} out"
    means = f"means of {demand.input_tokens:.0f} tokens in, {demand.output_tokens:.0f} out"
    return f"{len(demand.trace)} requests of {demand.trace.name}, {means}"
