"""Figures of a published load test, by what its source means by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from .observation import Unusable
from .published import PublishedRow

Quantity = Literal["throughput", "ttft", "itl"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
DECODE_RATE = 1.02  # of the tokens that TTFT and TPOT leave a single user: more are 1 / TPOT, not a throughput
ROUNDED = 0.01  # of a published figure


def measured_figures(row: PublishedRow) -> dict[Quantity, float]:
    """Return the figures that a row states. Raises Unusable if there are none, or one is negative."""
    columns = zip(QUANTITIES, ("output_tok_s", "ttft_ms", "tpot_ms"), strict=True)
    found = {name: row.measures.get(column, 0.0) for name, column in columns}
    if any(value < 0 for value in found.values()):
        raise Unusable("a measured figure is negative")
    found = {name: value for name, value in found.items() if value > 0}
    if _is_decode_rate(row, found):
        del found["throughput"]
    if not found:
        raise Unusable("no throughput, TTFT or time per token")
    return found


def _is_decode_rate(row: PublishedRow, found: Mapping[Quantity, float]) -> bool:
    """Return whether the "tokens a second" of a single user are 1 / TPOT: more than its TTFT leaves."""
    is_single = row.counts.get("concurrency") == 1 and "incl" not in row.label("tpot_stat")
    if not (is_single and {"throughput", "itl"} <= found.keys()):
        return False
    tokens, step_ms = row.counts["output_len"], found["itl"]
    least_ms = found.get("ttft", 0.0) + (tokens - 1) * step_ms
    share = DECODE_RATE if "ttft" in found else 1 - 1 / tokens - ROUNDED
    return found["throughput"] * least_ms / 1e3 > tokens * share
