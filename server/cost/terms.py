"""The kinds of work of a step and their units. Each kind has a row here and a formula in work.py.

The time of a step is the sum over its kinds of (units x seconds a unit), without overlap: the published rows fit that
as well as any overlap. Work with a peak rate in a data sheet is counted in seconds at that peak, so its coefficient is
the ratio of the actual time to that. A calibration is the mean of several fits, each without some optional kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Component = Literal["compute", "memory", "activation", "overhead"]  # of a step's time


@dataclass(frozen=True, slots=True)
class Term:
    """One kind of work. `start` is a guess from a data sheet or a known latency.

    A kind that few models or sources hold (selection.py) stays at its start, or is left out if it is optional.
    """

    component: Component
    unit: str  # the coefficient's: "1" = multiple of the time at peak, "share" of it, or "s"
    start: float
    meaning: str
    is_optional: bool = True
    least: float = 0.0  # 1 for work counted at peak: nothing is faster than its data sheet


def _at_peak(component: Component, start: float, meaning: str, is_optional: bool = False, least: float = 1.0) -> Term:
    return Term(component, "1", start, f"{meaning}, times its time at the peak of the data sheet", is_optional, least)


FASTEST_PROMPT = 1.5  # times the peak's time; the best published call reaches 48 % of the peak


DECODE_TERMS: dict[str, Term] = {
    "weights": _at_peak("memory", 1.4, "streaming the weights"),
    "kv": _at_peak("memory", 2.0, "streaming the cache of all compiled positions"),
    "decode_matmul": _at_peak("compute", 2.0, "matmuls of a decode step"),
    "dequant": Term("memory", "s", 4e-12, "one 8-bit weight widened on one core", False),
    "layer_launch": Term("overhead", "s", 6e-5, "one layer's instructions", False),
    "collectives": Term("overhead", "s", 3e-5, "one layer's all-reduces among several cores"),
    "ring_collectives": Term("overhead", "s", 3e-5, "one layer's all-reduces among several chips, in addition"),
    "slot_layer": Term("activation", "s", 2e-6, "one slot in one layer, per 4,096 of hidden size"),
    "kv_gather": Term("memory", "s", 1e-9, "one cached position of one slot in one layer, found by slot"),
    "expert_load": Term("memory", "s", 4e-6, "one expert of several fetched in one layer"),
    "old_launch": Term("overhead", "s", 1e-5, "one layer, for each release before 2.16"),
    "old_kv_gather": Term("memory", "s", 1e-10, "before 2.19: one position, slot, layer and KV head of the model"),
}
PREFILL_TERMS: dict[str, Term] = {
    "prefill_weights": _at_peak("memory", 1.4, "streaming the weights for a prompt"),
    "prefill_matmul": _at_peak("compute", 1.6, "matmuls of a prompt", least=FASTEST_PROMPT),
    "attention": _at_peak("compute", 2.0, "attention over a prompt", least=FASTEST_PROMPT),
    "prefill_call": Term("overhead", "s", 7e-3, "one prefill: the host's work around it", False),
    "prefill_launch": Term("overhead", "s", 3e-5, "one layer of a prefill"),
    "activation": Term("activation", "s", 7e-7, "one token through one layer, per 4,096 of hidden size"),
    "prefill_link": _at_peak("activation", 4.0, "all-reduces of a prompt over the links", is_optional=True),
    "expert_matmul": _at_peak("compute", 4.0, "all experts over all tokens, in tiles of 128", is_optional=True),
    "tnx_activation": Term("activation", "s", 9e-7, "as activation, more than Llama on transformers-neuronx"),
}
ENCODE_TERMS: dict[str, Term] = {  # of one pass of an encoder
    "encode_matmul": _at_peak("compute", 2.5, "matmuls of a pass, attention included"),
    "encode_layer": Term("overhead", "s", 2e-5, "one layer of a pass", False),
    "encode_call": Term("overhead", "s", 2e-4, "one pass: its start by the host, and its end"),
    "encode_activation": Term("activation", "s", 3e-7, "one token of a pass in one layer, per 4,096 of hidden size"),
    "encode_weights": Term("memory", "share", 0.2, "time at peak of streaming a pass's weights, not hidden by matmuls"),
    "encode_output": Term("memory", "s", 1e-10, "one byte of a pass's result, brought to the host"),
}
TERMS: dict[str, Term] = DECODE_TERMS | PREFILL_TERMS | ENCODE_TERMS
