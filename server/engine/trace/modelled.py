"""The timeline of the modelled part in a trace: a lane for each of what the cost model tells apart, beside the host's.

Durations are the cost model's. A graph's launch and host work come first, then matrix products beside the memory's
traffic, then collectives: on the part these alternate layer by layer, and the model knows their sums alone. So

    launch + max(tensor, DMA) + collectives = the graph's time

holds to the nanosecond. Vector and scalar engines have no lane, for no published figure tells them from the others.
A step begins when the host began it, or when the part is done with the step before, whichever is later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from server.clock import NS
from server.cost.pricer import GraphRun, StepCharge

LANES = ("graphs", "tensor engine", "DMA", "collectives", "launch and host")
GRAPHS, TENSOR, DMA, COLLECTIVES, LAUNCH = range(len(LANES))
GRAPH_EVENTS = 5  # of one graph: itself and its parts


@dataclass(frozen=True, slots=True)
class PartSpan:
    """One span; nanoseconds of the host's monotonic clock."""

    lane: int
    name: str
    begin_ns: int
    end_ns: int
    about: dict[str, Any] | None = None


class PartTimeline:
    """When the steps of a trace would begin and end on the part."""

    def __init__(self) -> None:
        self._end_ns = 0  # of the last step

    def spans(self, step_id: int, begin: float, charge: StepCharge) -> Iterator[PartSpan]:
        """Spans of a step that the host began at `begin` seconds."""
        time_ns = max(round(begin * NS), self._end_ns)
        for run in charge.runs:
            name = f"decode {run.num_tokens + run.num_padding} x {run.bucket}"
            yield from _graph(name if run is charge.decode else f"prefill {run.bucket}", step_id, time_ns, run)
            time_ns += run.ns
        self._end_ns = time_ns


def _graph(name: str, step_id: int, begin_ns: int, run: GraphRun) -> Iterator[PartSpan]:
    cost, end_ns = run.cost, begin_ns + run.ns
    about = {
        "step": step_id,
        "tokens": run.num_tokens,
        "padding": run.num_padding,
        "flops": round(cost.flops),
        "hbm_bytes": round(cost.hbm_bytes),
        "link_bytes": round(cost.link_bytes),
        "extrapolated": cost.extrapolated,
    }
    yield PartSpan(GRAPHS, name, begin_ns, end_ns, about)
    inner_ns = begin_ns + round(cost.overhead_s * NS)
    link_ns = end_ns - round(cost.link_s * NS)
    longer = max(cost.compute_s, cost.memory_s)
    for lane, what, seconds in ((TENSOR, "matrix products", cost.compute_s), (DMA, "memory traffic", cost.memory_s)):
        until = link_ns if seconds == longer else min(link_ns, inner_ns + round(seconds * NS))
        yield from _span(lane, what, inner_ns, until)
    yield from _span(COLLECTIVES, "all-reduces", link_ns, end_ns)
    yield from _span(LAUNCH, "launch and host", begin_ns, inner_ns)


def _span(lane: int, name: str, begin_ns: int, end_ns: int) -> Iterator[PartSpan]:
    if end_ns > begin_ns:
        yield PartSpan(lane, name, begin_ns, end_ns)
