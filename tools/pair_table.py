"""Tables of docs/internals/planner.md: published deployments that no fit takes, beside predictions."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

from neuronserve.planner.plan.pairs import (
    FIGURES,
    PricedPair,
    left_out,
    priced_pairs,
    series_errors,
)
from neuronserve.server.cost.calibration import Calibration, shipped_calibration
from neuronserve.server.cost.shape import unfitted
from neuronserve.server.cost.speculation import METHODS
from neuronserve.server.cost.spread import interval
from neuronserve.server.cost.stand_ins import Step, steps
from neuronserve.server.cost.stand_ins import series_errors as stand_in_errors

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


def stand_ins() -> str:
    """A row for each published deployment of a model with layers that no fit saw, then the bands by reason."""
    calibration = shipped_calibration()
    head = "| model | SDK | TPOT, predicted | TTFT, predicted |\n|---|---|---|---|\n"
    rows = [_step(step, calibration) for step in steps()]
    reasons = dict.fromkeys(unfitted(step.spec) for step in steps())
    return head + "".join(rows) + "\n" + "\n".join(_stand_in(reason, calibration) for reason in reasons)


def _stand_in(reason: str, calibration: Calibration) -> str:
    lines = []
    for phase in FIGURES:
        errors = stand_in_errors(reason, phase, calibration)
        low, high = (exp(each) for each in interval(errors.values()))
        held = f"{sum(_holds(errors, own) for own in errors)} of {len(errors)} series within that of the others"
        lines.append(f"{phase} {low:.2f} to {high:.2f} ({held if len(errors) > 1 else 'one series'})")
    return f"- {reason}: {', '.join(lines)}\n"


def _step(step: Step, calibration: Calibration) -> str:
    tpot, ttft = (step.error(phase, calibration) for phase in FIGURES)
    pairs = ((ms, ms / error) for ms, error in ((step.tpot_ms, tpot), (step.ttft_ms, ttft)))
    cells = (", ".join(map(_ms, pair)) for pair in pairs)
    return f"| {step.model} TP{step.tp} | {step.sdk} | {' | '.join(cells)} |\n"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _holds(errors: Mapping[tuple[str, str, str], float], own: tuple[str, str, str]) -> bool:
    low, high = interval(error for series, error in errors.items() if series != own)
    return low <= errors[own] <= high


def _bands() -> str:
    rows = [row for row in priced_pairs() if row.pair.feature in METHODS]
    lines = []
    for phase, figure in FIGURES.items():
        low, high = (exp(each) for each in interval(series_errors(figure, rows).values()))
        held = left_out(figure, rows).values()
        what = {"decode": "time per token", "prefill": "TTFT"}[phase]
        lines.append(f"{what} {low:.2f} to {high:.2f} ({sum(held)} of {len(held)} series within that of the others)")
    return f"Band of a gain: {', '.join(lines)}.\n"
