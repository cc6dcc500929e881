"""The timeline of the modelled accelerator in a trace: a lane for each term of the cost model.

Durations are the cost model's, which adds its terms up: so in each graph they follow one another, and

    launch and host + DMA + tensor engine + vector and collectives = the graph's time

holds to the nanosecond. On real hardware they alternate layer by layer and overlap in places; the model has only their
sums. A step begins when the host began it, or when the accelerator is done with the step before, whichever is later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...clock import NS
from ...cost.model import StepCost
from ...cost.pricer import GraphRun, StepCharge
from ...cost.terms import Component

LANES = ("graphs", "tensor engine", "DMA", "vector and collectives", "launch and host")
GRAPHS = 0
GRAPH_EVENTS = len(LANES)  # of one graph: itself and its components, a lane each
ORDER: tuple[tuple[Component, int], ...] = (
    ("overhead", 4),
    ("memory", 2),
    ("compute", 1),
    ("activation", 3),
)  # with lanes


@dataclass(frozen=True, slots=True)
class ModelledSpan:
    """One span; nanoseconds of the host's monotonic clock."""

    lane: int
    name: str
    begin_ns: int
    end_ns: int
    about: dict[str, Any] | None = None


class ModelledTimeline:
    """Places the steps of a trace in the accelerator's time."""

    def __init__(self) -> None:
        self._end_ns = 0  # of the last step

    def spans(self, step_id: int, begin: float, charge: StepCharge) -> Iterator[ModelledSpan]:
        """Spans of a step that the host began at `begin` seconds."""
        time_ns = max(round(begin * NS), self._end_ns)
        for run in charge.runs:
            name = f"decode {run.num_tokens + run.num_padding} x {run.bucket}"
            yield ModelledSpan(
                GRAPHS,
                name if run is charge.decode else f"prefill {run.bucket}" if run.bucket else "copy",
                time_ns,
                time_ns + run.ns,
                _about(step_id, run),
            )
            yield from _terms(time_ns, time_ns + run.ns, run.cost)
            time_ns += run.ns
        self._end_ns = time_ns


def _about(step_id: int, run: GraphRun) -> dict[str, Any]:
    return {
        "step": step_id,
        "tokens": run.num_tokens,
        "padding": run.num_padding,
        "flops": round(run.cost.flops),
        "hbm_bytes": round(run.cost.hbm_bytes),
        "link_bytes": round(run.cost.link_bytes),
        "extrapolated": run.cost.extrapolated,
    }


def _terms(begin_ns: int, end_ns: int, cost: StepCost) -> Iterator[ModelledSpan]:
    """Yield the terms one after another; the last absorbs the rounding."""
    seconds = 0.0
    start_ns = begin_ns
    for term, lane in ORDER:
        seconds += getattr(cost, f"{term}_s")
        until_ns = end_ns if term == ORDER[-1][0] else min(end_ns, begin_ns + round(seconds * NS))
        if until_ns > start_ns:
            yield ModelledSpan(lane, LANES[lane], start_ns, until_ns)
        start_ns = until_ns
