"""Sharding of a model's axes over the emulated cores of a tensor-parallel group: integers only, no weights, no bytes.

Query heads, the feed-forward axis and the vocabulary are split. KV heads are split, and replicated if there are fewer
than cores. Every core gets the same padded sizes. The accelerator's own account is in core_share.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..errors import DeviceError
from ..models.linear import Axis, AxisName, Channels, HeadCounts, Vector
from ..models.spec import ModelSpec

INTERMEDIATE_MULTIPLE = 32  # the k extent of a tile of bfloat16 weights
VOCAB_MULTIPLE = 16  # the n extent of a matmul tile
PAD = -1  # a slot that holds no head


class UnitRun(NamedTuple):
    """`length` neighbouring units of an axis from unit `first` on, in the slots of a core from `slot` on."""

    slot: int
    first: int
    length: int


def require_degree(tp: int) -> None:
    """Raise DeviceError when `tp` is below 1."""
    if tp < 1:
        raise DeviceError(f"tensor_parallel_size is {tp}: at least 1 is needed")


def _padded(total: int, parts: int, multiple: int) -> int:
    """Return ceil(total / parts), rounded up to `multiple`."""
    return -(-total // (parts * multiple)) * multiple


def intermediate_per_core(size: int, tp: int) -> int:
    """Return the rows of a feed-forward network of `size` on each core, padding included."""
    return _padded(size, tp, INTERMEDIATE_MULTIPLE)


def _assign(heads: int, kv_heads: int, tp: int) -> list[list[int]]:
    """Return the global query head of each local slot, for each core; PAD for empty slots."""
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
class HeadShard:
    """Share of each core in the heads of some layers. Heads are tuples by core, then by local slot."""

    counts: HeadCounts
    query_slots: tuple[tuple[int, ...], ...]
    kv_slots: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, counts: HeadCounts, tp: int) -> HeadShard:
        """Divide heads over `tp` cores."""
        group, queries = counts.query // counts.kv, _assign(*counts, tp)
        kv = [sorted({h // group for h in heads if h != PAD}) for heads in queries]
        most = max(1, *map(len, kv))
        kv = [heads + [PAD] * (most - len(heads)) for heads in kv]
        groups = tuple(_ranges(q, k, group) for q, k in zip(queries, kv, strict=True))
        return cls(counts, tuple(map(tuple, queries)), tuple(map(tuple, kv)), groups)

    @property
    def heads_per_core(self) -> int:
        """Query heads stored on each core, padding included."""
        return len(self.query_slots[0])

    @property
    def kv_heads_per_core(self) -> int:
        """KV heads stored on each core, copies and padding included."""
        return len(self.kv_slots[0])

    @property
    def max_group(self) -> int:
        """Most query heads that one KV head of a core serves."""
        return max(1, *(end - begin for ranges in self.groups for begin, end in ranges))

    def q_heads(self, core: int) -> tuple[int, ...]:
        """Return the global query head of each local slot of `core`, PAD for none."""
        return self.query_slots[core]

    def kv_heads(self, core: int) -> tuple[int, ...]:
        """Return the global KV head of each local KV slot of `core`, PAD for none."""
        return self.kv_slots[core]

    def first_own_kv_slot(self, core: int) -> int:
        """Return the first KV slot of `core` whose head no earlier core has; the number of slots if all are copies."""
        seen = {head for before in self.kv_slots[:core] for head in before}
        slots = self.kv_slots[core]
        return next((slot for slot, head in enumerate(slots) if head not in seen), len(slots))

    def q_per_kv(self, core: int) -> tuple[tuple[int, int], ...]:
        """Return the half-open range of local query slots that each local KV slot serves."""
        return self.groups[core]


@lru_cache(maxsize=256)
def _head_shard(counts: HeadCounts, tp: int) -> HeadShard:
    return HeadShard.of(counts, tp)


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The share of each core."""

    tp: int
    intermediate_per_core: int
    vocab_per_core: int
    heads: tuple[HeadShard, ...]  # one for each kind of layer with heads of its own
    has_whole_experts: bool = False  # each core has some of a layer's experts, not a share of every expert

    @classmethod
    def of(cls, model: ModelSpec, tp: int, is_expert_parallel: bool = False) -> ShardSpec:
        """Split `model` over `tp` cores.

        Raises DeviceError when `tp` is below 1, or does not divide the experts of an expert-parallel model.
        """
        require_degree(tp)
        experts = 0 if model.experts is None else model.experts.count
        if is_expert_parallel and (experts == 0 or experts % tp):
            what = f"{experts} experts in a layer, which do not divide" if experts else "no experts to divide"
            raise DeviceError(f"enable_expert_parallel: {model.architecture} has {what} over tensor_parallel_size {tp}")
        return cls(
            tp=tp,
            intermediate_per_core=intermediate_per_core(model.widest_intermediate, tp),
            vocab_per_core=_padded(model.vocab_size, tp, VOCAB_MULTIPLE),
            heads=tuple(_head_shard(counts, tp) for counts in dict.fromkeys(each.heads for each in model.attentions)),
            has_whole_experts=is_expert_parallel,
        )

    def of_heads(self, counts: HeadCounts) -> HeadShard:
        """Return the share of each core in the heads of a layer that has `counts`."""
        return _head_shard(counts, self.tp)

    @property
    def expert_tp(self) -> int:
        """Number of cores that divide one expert."""
        return 1 if self.has_whole_experts else self.tp

    def experts(self, count: int, core: int) -> range:
        """Return the indices of the `count` experts that `core` has, whole or in part."""
        per_core = count // self.tp
        return range(per_core * core, per_core * (core + 1)) if self.has_whole_experts else range(count)

    def units(self, axis: Axis) -> int:
        """Return the units of `axis` on each core, padding included."""
        if axis.name in ("query", "kv"):
            heads = self.of_heads(axis.heads)
            return heads.heads_per_core if axis.name == "query" else heads.kv_heads_per_core
        per_core: dict[AxisName, int] = {
            "ffn": intermediate_per_core(axis.units, self.expert_tp if axis.is_of_expert else self.tp),
            "vocab": self.vocab_per_core,
        }
        return per_core.get(axis.name, axis.units)  # other axes are whole on every core

    def size(self, axis: Axis) -> int:
        """Return the elements of `axis` on each core, padding included."""
        return self.units(axis) * axis.unit_size

    def vector_size(self, vector: Vector) -> int:
        """Return the elements of `vector` on each core, padding included."""
        if isinstance(vector, Channels):
            return max(1, vector.taps) * sum(map(self.size, vector.parts))
        return vector.size if vector.axis is None else self.size(vector.axis)

    def runs(self, axis: Axis, core: int) -> Iterator[UnitRun]:
        """Yield the runs of units of `axis` on `core`. Empty slots are left out."""
        if axis.name in ("query", "kv"):
            heads = self.of_heads(axis.heads)
            yield from _runs(heads.q_heads(core) if axis.name == "query" else heads.kv_heads(core))
            return
        per_core = self.units(axis)
        is_whole = axis.is_of_expert and self.has_whole_experts
        first = per_core * core if axis.name in ("ffn", "vocab") and not is_whole else 0
        count = min(per_core, axis.units - first)
        if count > 0:
            yield UnitRun(0, first, count)


def _ranges(queries: list[int], kv: list[int], group: int) -> tuple[tuple[int, int], ...]:
    """Return the query slots of each KV head, which are neighbours because heads are assigned in order."""
    ranges = []
    for kv_head in kv:
        slots = [i for i, h in enumerate(queries) if h != PAD and h // group == kv_head]
        ranges.append((slots[0], slots[-1] + 1) if slots and kv_head != PAD else (0, 0))
    return tuple(ranges)


def _runs(heads: Sequence[int]) -> Iterator[UnitRun]:
    """Yield runs of neighbouring slots with neighbouring heads."""
    begin = 0
    for slot in range(1, len(heads) + 1):
        if slot == len(heads) or heads[slot] != heads[begin] + slot - begin or heads[begin] < 0:
            if heads[begin] >= 0:
                yield UnitRun(begin, heads[begin], slot - begin)
            begin = slot
