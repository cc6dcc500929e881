"""Memory of a core that the runtime takes for compiled graphs, by the categories of its own account.

Coefficients are those of ranks 1 to 7 in the account of Llama-3.1-8B at TP8 by optimum-neuron (6373c379,
benchmark/vllm, memory_capacity_analysis): 32 layers, 1,948 MiB of weights, two graphs (prompts and decode). Its "MB"
are MiB, as its KV line shows. Which size each category grows with is read from that account and from that of
Llama-3-70B at TP12 (transformers-neuronx #92), which took no part in a coefficient (`python -m tools.memory_accounts`).
What rank 0 has beside is measured in the first account alone, so it is charged under optimum-neuron's stacks alone: in
the second all cores are alike, and Llama-3.1-405B on trn2.48xlarge would not fit with it, where NxD Inference runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..device.ledger import MIB, Use


class Line(NamedTuple):
    """An entry of a core's account."""

    use: Use
    name: str
    num_bytes: int


MICROCODE_BYTES = 96 * MIB  # of each physical core: device-memory.rst of the SDK
CODE_BYTES = (228 - 96) * MIB // (2 * 32)  # of a layer in a graph
COLLECTIVES_BYTES = 126 * MIB * 8 // 7 // (2 * 32)  # of a layer in a graph, times (tp - 1) / tp as in an all-reduce
# DMA rings hold descriptors of all moved bytes, most of which are weights. On chips with logical cores of several
# physical ones hardware makes descriptors (device-memory.rst), and no account is published: as much as was measured.
RING_SHARE = 220 / 1948 / 2  # of the weights, for each graph
RING_BYTES = 220 * MIB
RUNTIME_BYTES = 8 * MIB  # constants, notifications and the rest

FIRST_CODE_BYTES = (319 - 228) * MIB
FIRST_COLLECTIVES_BYTES = (472 - 126) * MIB


@dataclass(frozen=True, slots=True)
class Graphs:
    """Compiled graphs of a model on cores of `tp`, each of `lnc` physical ones."""

    count: int
    layers: int
    tp: int
    lnc: int

    def lines(self, weight_bytes: int) -> tuple[Line, ...]:
        """Return the entries of each core with `weight_bytes` of weights."""
        layers = self.count * self.layers
        return (
            Line("collectives", "buffers", COLLECTIVES_BYTES * layers * (self.tp - 1) // self.tp),
            Line("dma_rings", "descriptors", self._rings(weight_bytes) if self.lnc == 1 else RING_BYTES),
            Line("code", "microcode", MICROCODE_BYTES * self.lnc),
            Line("code", "instructions", CODE_BYTES * layers),
            Line("runtime", "constants and notifications", RUNTIME_BYTES),
        )

    def first_lines(self, weight_bytes: int) -> tuple[Line, ...]:
        """Return what the first of several cores has beside, with `weight_bytes` more of weights."""
        return (
            Line("collectives", "gathering", FIRST_COLLECTIVES_BYTES),
            Line("dma_rings", "descriptors", self._rings(weight_bytes) if self.lnc == 1 else 0),
            Line("code", "instructions", FIRST_CODE_BYTES),
        )

    def _rings(self, weight_bytes: int) -> int:
        return int(RING_SHARE * self.count * weight_bytes)
