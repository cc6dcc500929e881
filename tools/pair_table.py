"""Tables of docs/internals/planner.md: published deployments with and without a feature, beside predictions."""

from __future__ import annotations

from math import exp

from neuronserve.server.cost.pairs import (
    FIGURES,
    PricedPair,
    left_out,
    priced_pairs,
    series_errors,
)
from neuronserve.server.cost.speculation import METHODS
from neuronserve.server.cost.spread import interval

HEAD = """\
| model | feature | tokens/step | published | predicted | gain's error |
|---|---|---|---|---|---|
"""


def table() -> str:
    """A row for each pair, then the bands."""
    return HEAD + "".join(map(_row, priced_pairs())) + "\n" + _bands()


def _row(row: PricedPair) -> str:
    """A row; tokens per step that are not published are those that would give the published gain, in brackets."""
    pair, plain_ms, step_ms, error = row.pair, row.plain_step_s * 1e3, row.step_s * 1e3, row.error("tpot_ms")
    fitting = step_ms / plain_ms * pair.plain_tpot_ms / pair.tpot_ms
    tokens = 1 if not pair.guesses else pair.tokens_per_step or fitting
    cells = [
        f"{pair.model} TP{pair.tp}",
        f"{pair.feature},{pair.guesses}" if pair.guesses else pair.feature,
        f"{tokens:.3g}" if error else f"({fitting:.2g})",
        f"{pair.plain_tpot_ms:.3g}→{pair.tpot_ms:.3g}",
        f"{plain_ms:.3g}→{step_ms / tokens:.3g}" if error else f"{plain_ms:.3g}",
        "-" if error is None else f"{1 / error - 1:+.0%}",
    ]
    return f"| {' | '.join(cells)} |\n"


def _bands() -> str:
    rows = [row for row in priced_pairs() if row.pair.feature in METHODS]
    lines = []
    for phase, figure in FIGURES.items():
        low, high = (exp(each) for each in interval(series_errors(figure, rows).values()))
        held = left_out(figure, rows).values()
        what = {"decode": "time per token", "prefill": "TTFT"}[phase]
        lines.append(f"{what} {low:.2f} to {high:.2f} ({sum(held)} of {len(held)} series within that of the others)")
    return f"Band of a gain: {', '.join(lines)}.\n"
