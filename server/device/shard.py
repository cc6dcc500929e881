"""How one model lies over the cores of a tensor-parallel group: integers only, no weights and no bytes.

Query heads, the feed-forward dimension and the vocabulary are split; KV heads are split while there are enough and
replicated beyond (what the Neuron libraries call REPLICATE_TO_TP_DEGREE). Every core gets the same padded sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.config import ModelSpec
from server.errors import DeviceError

INTERMEDIATE_MULTIPLE = 32  # the k extent of a tile of bfloat16 weights
VOCAB_MULTIPLE = 16  # the n extent of a matmul tile
PAD = -1  # a slot that holds no head


def _padded(total: int, parts: int, multiple: int) -> int:
    """ceil(total / parts), rounded up to `multiple`."""
    return -(-total // (parts * multiple)) * multiple


def _assign(heads: int, kv_heads: int, tp: int) -> list[list[int]]:
    """Global query head of each local slot, for each core; PAD where a core has fewer."""
    group = heads // kv_heads
    if tp > kv_heads and tp % kv_heads == 0:  # each kv head on tp / kv_heads cores, its group split among them
        copies = tp // kv_heads
        per_core = -(-group // copies)
        groups = [list(range(g * group, (g + 1) * group)) for g in range(kv_heads)]
        slots = [g[i * per_core : (i + 1) * per_core] for g in groups for i in range(copies)]
    else:
        per_core = -(-heads // tp)
        slots = [list(range(min(c * per_core, heads), min((c + 1) * per_core, heads))) for c in range(tp)]
    return [s + [PAD] * (per_core - len(s)) for s in slots]


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The share of each core. Heads are tuples by core, then by local slot."""

    tp: int
    intermediate_per_core: int
    vocab_per_core: int
    query_slots: tuple[tuple[int, ...], ...]
    kv_slots: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, model: ModelSpec, tp: int) -> ShardSpec:
        """Split `model` over `tp` cores. Raises DeviceError when `tp` is below 1."""
        if tp < 1:
            raise DeviceError(f"tensor_parallel_size is {tp}: at least 1 is needed")
        queries = _assign(model.num_heads, model.num_kv_heads, tp)
        group = model.num_heads // model.num_kv_heads
        kv = [sorted({h // group for h in heads if h != PAD}) for heads in queries]
        most = max(1, *map(len, kv))
        kv = [heads + [PAD] * (most - len(heads)) for heads in kv]
        return cls(
            tp=tp,
            intermediate_per_core=_padded(model.intermediate_size, tp, INTERMEDIATE_MULTIPLE),
            vocab_per_core=_padded(model.vocab_size, tp, VOCAB_MULTIPLE),
            query_slots=tuple(map(tuple, queries)),
            kv_slots=tuple(map(tuple, kv)),
            groups=tuple(_ranges(q, k, group) for q, k in zip(queries, kv, strict=True)),
        )

    @property
    def heads_per_core(self) -> int:
        """Query heads stored on each core, padding included."""
        return len(self.query_slots[0])

    @property
    def kv_heads_per_core(self) -> int:
        """KV heads stored on each core, copies and padding included."""
        return len(self.kv_slots[0])

    def q_heads(self, core: int) -> tuple[int, ...]:
        """Global query head of each local slot of `core`, PAD for none."""
        return self.query_slots[core]

    def kv_heads(self, core: int) -> tuple[int, ...]:
        """Global kv head of each local kv slot of `core`, PAD for none."""
        return self.kv_slots[core]

    def q_per_kv(self, core: int) -> tuple[tuple[int, int], ...]:
        """For each local kv slot, the half-open range of local query slots that it serves."""
        return self.groups[core]


def _ranges(queries: list[int], kv: list[int], group: int) -> tuple[tuple[int, int], ...]:
    """Query slots of one kv head are neighbours, because heads are assigned in order."""
    ranges = []
    for kv_head in kv:
        slots = [i for i, h in enumerate(queries) if h != PAD and h // group == kv_head]
        ranges.append((slots[0], slots[-1] + 1) if slots and kv_head != PAD else (0, 0))
    return tuple(ranges)
