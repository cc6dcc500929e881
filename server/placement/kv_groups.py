"""Groups of layers that share the blocks of the KV cache. Layers of a group look back equally far and share a table.

A block holds K and V of some tokens for as many layers as a group has, so any group can use any block of the one pool
(as vLLM's KV cache groups). Layers that look back equally far are divided into groups of that size. The last group of
a kind may have fewer layers; then a part of its blocks is unused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..config import AttentionSpan, CacheConfig
from ..models.layer import AttentionSpec
from ..models.linear import HeadCounts
from ..models.spec import ModelSpec

MAX_GROUPS = 8  # a step lays out one table a group for every sequence
PerSlot = Mapping[AttentionSpec, int]  # layers of a kind that share a slot
Kind = tuple[int, HeadCounts, int]  # layers with as many in a slot, and the same heads
LEAST_SAVING = 0.05  # of the longest sequence's bytes; with a smaller saving there is one group


class KVPlace(NamedTuple):
    """Place of a layer's keys and values: the group whose tables list its blocks, and its slot in a block.

    Small layers share a slot; `part` counts them.
    """

    group: int
    slot: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class KVGroups:
    """The groups of one model, the ones that look back farthest first."""

    spans: tuple[AttentionSpan, ...]
    places: tuple[KVPlace | None, ...]  # of each layer; None: it has no keys and values
    block_layers: int  # slots of one block, each for a layer of the largest kind
    block_size: int  # tokens
    chunk: int  # tokens of one sequence in one step
    max_model_len: int  # of the longest sequence
    max_source_len: int = 0  # positions of the encoder that cross attention reads; their blocks have as many layers

    @classmethod
    def of(
        cls, model: ModelSpec, max_model_len: int, block_size: int, chunk: int, per_slot: PerSlot | None = None
    ) -> KVGroups:
        """Return the groups with the fewest bytes for a sequence of `max_model_len` tokens, and among these the fewest.

        A window that such a sequence never leaves counts as none. `per_slot`: see cache_layout.layers_per_slot.
        """
        mixers = [layer.mixer for layer in model.layers]
        kept = {i: each for i, each in enumerate(mixers) if isinstance(each, AttentionSpec) and each.kv_source is None}
        kinds = {i: (1 if per_slot is None else per_slot[each], each.heads, each.head_dim) for i, each in kept.items()}
        layers: dict[AttentionSpan, list[int]] = {}
        for i, mixer in kept.items():
            span = mixer.span
            layers.setdefault(span if span.window < max_model_len else AttentionSpan(), []).append(i)
        together = {_widest(layers): list(kept)}

        def num_slots(layers: dict[AttentionSpan, list[int]]) -> dict[AttentionSpan, int]:
            return {span: len(set(_slots(each, kinds))) for span, each in layers.items()}

        def slot_blocks(slots: dict[AttentionSpan, int], size: int) -> int:
            """Return the blocks of one slot that the sequence holds, to which its bytes are proportional."""
            held = ((num, span.most_blocks(max_model_len, block_size, chunk)) for span, num in slots.items())
            return size * sum(-(-num // size) * blocks for num, blocks in held)

        slots, slots_together = num_slots(layers), num_slots(together)
        most = sum(slots_together.values())
        sizes = [size for size in range(most, 0, -1) if sum(-(-num // size) for num in slots.values()) <= MAX_GROUPS]
        best = min(sizes, key=lambda size: slot_blocks(slots, size))
        if slot_blocks(slots, best) > (1 - LEAST_SAVING) * slot_blocks(slots_together, most):
            layers, best = together, most
        spans, places = _places(layers, best, kinds)
        sources = [each.kv_source if isinstance(each, AttentionSpec) else None for each in mixers]
        found = tuple(places.get(i if source is None else source) for i, source in enumerate(sources))
        longest = 0 if model.source is None else model.source.max_position
        return cls(spans, found, best, block_size, chunk, max_model_len, longest)

    @property
    def layout(self) -> str:
        """Description of what the block tables are for."""
        backs = (f"windows of {span.window}" if span.window else "all tokens" for span in self.spans)
        return f"{len(self.spans)} group(s) of layers that see {', '.join(backs)}"

    @property
    def num_source_blocks(self) -> int:
        """Blocks of the longest encoding that cross attention reads."""
        return -(-self.max_source_len // self.block_size)

    def blocks_of(self, num_tokens: int, chunk: int | None = None) -> int:
        """Return the most blocks that a sequence of `num_tokens` tokens and its encoding hold at once.

        `chunk` replaces the own one.
        """
        chunk = self.chunk if chunk is None else chunk
        own = sum(span.most_blocks(num_tokens, self.block_size, chunk) for span in self.spans)
        return own + self.num_source_blocks

    def cache(
        self, num_blocks: int, enable_prefix_caching: bool, num_states: int = 0, grows: bool = False
    ) -> CacheConfig:
        """Return the configuration of an engine's KV cache. Encodings get the share that the longest sequence has."""
        encodings = num_blocks * self.num_source_blocks // (self.blocks_of(self.max_model_len) + 1)
        sizes = num_blocks - encodings, self.block_size, enable_prefix_caching, self.spans, self.chunk, num_states
        longest = self.max_source_len
        return CacheConfig(*sizes, grows=grows, max_source_len=longest, num_source_blocks=encodings)


def _slots(layers: Sequence[int], kinds: Mapping[int, Kind]) -> list[tuple[Kind, int]]:
    """Return a key for the slot of each layer: as many layers of one kind as fit share it."""
    seen: Counter[Kind] = Counter()
    slots = []
    for kind in (kinds[i] for i in layers):
        slots.append((kind, seen[kind] // kind[0]))
        seen[kind] += 1
    return slots


def _places(
    layers: dict[AttentionSpan, list[int]], size: int, kinds: Mapping[int, Kind]
) -> tuple[tuple[AttentionSpan, ...], dict[int, KVPlace]]:
    """Return the spans of groups of `size` slots, and the place of each layer in them."""
    spans: list[AttentionSpan] = []
    places: dict[int, KVPlace] = {}
    for span in sorted(layers, key=_reach, reverse=True):
        slots = _slots(layers[span], kinds)
        order = {slot: at for at, slot in enumerate(dict.fromkeys(slots))}
        parts: Counter[tuple[Kind, int]] = Counter()
        for layer, slot in zip(layers[span], slots, strict=True):
            places[layer] = KVPlace(len(spans) + order[slot] // size, order[slot] % size, parts[slot])
            parts[slot] += 1
        spans += [span] * -(-len(order) // size)
    return tuple(spans), places


def _reach(span: AttentionSpan) -> float:
    return span.window or float("inf")


def _widest(layers: dict[AttentionSpan, list[int]]) -> AttentionSpan:
    """Return a span that covers all `layers`. Chunks beside windows need everything."""
    if any(span.is_chunked for span in layers):
        return AttentionSpan() if len(layers) > 1 else next(iter(layers))
    return max(layers, key=_reach)
