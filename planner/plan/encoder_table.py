"""A plan of an encoder as text for a terminal. Formats only."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group
from rich.text import Text

from ...server.device.prices import PriceBasis
from ...server.models.tensors import num_params
from .columns import Column, band, dollars, figure, milliseconds, prose, table_of
from .encoders import EncoderReport, EncoderRow, TextPrice

NUM_ROWS = 20
CAPTION = (
    "latency: mean from a text's arrival to its answer, at the rate, and its percentiles; pass: all texts of a batch, "
    "and its P10-P90; max: texts a second of one instance"
)
FORMS = "The same instance in a benchmark of closed loops, as Neuron's tables have them (models x workers of each): "


def render(report: EncoderReport, width: int) -> Group:
    """Return the recommendation, then the best batch of each device, degree and weight type."""
    best: dict[tuple[str, int, str], EncoderRow] = {}
    for row in report.rows:
        best.setdefault((row.device, row.tp, row.dtype), row)
    shown = list(best.values())[:NUM_ROWS]
    misses = {f"{row.device} TP{row.tp} {row.dtype}: {'; '.join(row.misses)}" for row in shown if row.misses}
    reasons = dict.fromkeys(reason for row in shown for reason in row.extrapolated.split("; ") if reason)
    notes = (*sorted(misses), *(f"formula only, {reason}" for reason in reasons), *report.notes)
    return Group(
        Text(f"{_sentence(report)}\n", style="bold"),
        Text(f"{_question(report)}\n"),
        table_of("Within the limits first, then cheapest first", _columns(report), shown, width),
        Text(f"{CAPTION}; $ by the {report.options.price_basis} price\n"),
        Text(f"{FORMS}{_forms(report.rows[0])}\n"),
        *(prose(f"- {note}", width) for note in notes),
    )


def _sentence(report: EncoderReport) -> str:
    row, basis = report.rows[0], report.options.price_basis
    price = row.at_rate[basis]
    cost = "no price is known"
    if price is not None:
        cost = f"${dollars(price.hourly_usd)} an hour, ${figure(price.texts_usd)} per 1M texts"
    head = "Take" if row.meets_slo else f"No configuration holds the limits ({'; '.join(row.misses)}). The first is"
    return (
        f"{head} {row.instances} x {row.device}, each {row.dp} x TP{row.tp} with batches of {row.batch} in "
        f"{row.dtype}: latency {milliseconds(row.latency_s)} ms, a pass {milliseconds(row.pass_s)} ms "
        f"(P10-P90 {band(*row.pass_band_s)}), {cost}. Pass {_evidence(row)}."
    )


def _evidence(row: EncoderRow) -> str:
    """Return what stands behind the time of a pass."""
    if row.band.provenance == "formula":
        return f"by formula alone: {row.extrapolated}"
    return f"{row.band.provenance}: {row.band.num_rows} rows, nearest {row.band.nearest}"


def _forms(row: EncoderRow) -> str:
    shown = (
        f"{each.models} x {each.workers}: {figure(each.texts_s)} texts/s, p50 {milliseconds(each.latency_p50_s)} ms, "
        f"p99 {milliseconds(each.latency_p99_s)} ms"
        for each in row.forms
    )
    return "; ".join(shown)


def _question(report: EncoderReport) -> str:
    options = report.options
    limits = (f"{each.name.replace('TTFT', 'latency')} at most {each.seconds * 1e3:g} ms" for each in options.limits)
    limit = ", ".join(limits) or "no limits"
    return (
        f"{options.model} ({num_params(report.model) / 1e6:.1f}M parameters, an encoder): texts of "
        f"{options.input_tokens} tokens, padded to {report.bucket}; {options.request_rate:g} texts/s; {limit}; "
        f"calibration {report.calibration}"
    )


def _columns(report: EncoderReport) -> list[Column[EncoderRow]]:
    basis = report.options.price_basis
    return [
        Column("device", lambda row: row.device, is_text=True),
        Column("TP", lambda row: str(row.tp)),
        Column("DP", lambda row: str(row.dp), 1),
        Column("type", lambda row: {"bfloat16": "bf16"}.get(row.dtype, row.dtype), is_text=True),
        Column("batch", lambda row: str(row.batch)),
        Column("GiB\n/core", lambda row: f"{row.memory_bytes / 2**30:.1f}", 2),
        Column("load", lambda row: f"{row.load:.0%}", 1),
        Column("count", lambda row: str(row.instances)),
        Column("$/h", _price(basis, lambda price: dollars(price.hourly_usd))),
        Column("$/1M\ntexts", _price(basis, lambda price: figure(price.texts_usd))),
        Column("$/1M\ntokens", _price(basis, lambda price: figure(price.tokens_usd))),
        Column("max\ntexts/s", lambda row: figure(row.saturated_texts_s), 1),
        Column("latency\nms", lambda row: milliseconds(row.latency_s)),
        Column("p50", lambda row: milliseconds(row.latency_p50_s), 1),
        Column("p99", lambda row: milliseconds(row.latency_p99_s), 1),
        Column("pass\nms", lambda row: milliseconds(row.pass_s)),
        Column("pass\nP10-P90", lambda row: band(*row.pass_band_s)),
        Column("within", lambda row: "yes" if row.meets_slo else "no", 1),
    ]


def _price(basis: PriceBasis, shown: Callable[[TextPrice], str]) -> Callable[[EncoderRow], str]:
    return lambda row: "unknown" if (price := row.at_rate[basis]) is None else shown(price)
