"""The kinds of work of a step and their units. Each kind has a row here and a formula in work.py.

The time of a step is the sum over its kinds of (units x seconds a unit), without overlap: the published rows fit that
as well as any overlap. Work with a peak rate in a data sheet is counted in seconds at that peak, so its coefficient is
the ratio of the actual time to that. The fit decides which of the optional kinds a calibration has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Component = Literal["compute", "memory", "activation", "overhead"]  # of a step's time


@dataclass(frozen=True, slots=True)
class Term:
    """One kind of work. `start` is a guess from a data sheet or a known latency, used if no row determines it."""

    component: Component
    unit: str  # the coefficient's: "1" = multiple of the time at peak, "share" of it, or "s"
    start: float
    meaning: str
    is_optional: bool = True
    least: float = 0.0  # 1 for work counted at peak: nothing is faster than its data sheet


def _at_peak(component: Component, start: float, meaning: str, is_optional: bool = True) -> Term:
    return Term(
        component, "1", start, f"{meaning}, times its time at the peak of the data sheet", is_optional, least=1.0
    )


TERMS: dict[str, Term] = {
    # Decode. Weights are streamed in a prefill too.
    "weights": _at_peak("memory", 1.4, "streaming the weights", is_optional=False),
    "kv": _at_peak("memory", 2.0, "streaming the cache of all compiled positions", is_optional=False),
    "layer_launch": Term("overhead", "s", 3e-5, "one layer's instructions", False),
    "collectives": Term("overhead", "s", 5e-5, "the start of one layer's collectives"),
    "decode_matmul": _at_peak("compute", 2.0, "matmuls of a decode step", is_optional=False),
    "slot_layer": Term("activation", "s", 2e-6, "one slot in one layer, per 4,096 of hidden size"),
    "kv_gather": Term("memory", "s", 1e-9, "one cached position of one slot in one layer, found by slot"),
    "dequant": Term("memory", "s", 4e-12, "one 8-bit weight widened on one core", False),
    "expert_load": Term("memory", "s", 2e-6, "one expert fetched in one layer"),
    "decode_link": _at_peak("activation", 3.0, "all-reduces of a decode step over the links"),
    "decode_hop": Term("activation", "s", 1.5e-6, "one hop between neighbouring chips in a decode step"),
    "decode_call": Term("overhead", "s", 5e-4, "one decode step, whatever the model"),
    "old_launch": Term("overhead", "s", 1e-5, "one layer, for each release before 2.16"),
    "old_kv_gather": Term("memory", "s", 1e-10, "before 2.19: one position, slot, layer and KV head of the model"),
    # Prefill.
    "prefill_matmul": _at_peak("compute", 1.6, "matmuls of a prompt", is_optional=False),
    "activation": Term("activation", "s", 1e-6, "one token through one layer, per 4,096 of hidden size", False),
    "attention": _at_peak("compute", 3.0, "attention over a prompt", is_optional=False),
    "prefill_launch": Term("overhead", "s", 3e-5, "one layer of a prefill"),
    "prefill_call": Term("overhead", "s", 1e-2, "one prefill: the host's work around it", False),
    "expert_prefill": Term("compute", "s", 1e-4, "one expert's blocks of a prompt in one layer"),
    "prefill_link": _at_peak("activation", 3.0, "all-reduces of a prompt over the links"),
    # A pass of an encoder.
    "encode_matmul": _at_peak("compute", 2.5, "matmuls of a pass, attention included", is_optional=False),
    "encode_layer": Term("overhead", "s", 2e-5, "one layer of a pass", False),
    "encode_call": Term("overhead", "s", 2e-4, "one pass: its start by the host, and its end"),
    "encode_activation": Term("activation", "s", 3e-7, "one token of a pass in one layer, per 4,096 of hidden size"),
    "encode_weights": Term("memory", "share", 0.2, "time at peak of streaming a pass's weights, not hidden by matmuls"),
    "encode_output": Term("memory", "s", 1e-10, "one byte of a pass's result, brought to the host"),
}
