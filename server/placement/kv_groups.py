"""Groups of layers that share the blocks of the KV cache. Layers of a group look back equally far and share a table.

A block holds K and V of some tokens for as many layers as a group has, so any group can use any block of the one pool
(as vLLM's KV cache groups). Layers that look back equally far are divided into groups of that size. The last group of
a kind may have fewer layers; then a part of its blocks is unused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ..config import AttentionSpan, CacheConfig
from ..models.spec import ModelSpec

MAX_GROUPS = 8  # a step lays out one table a group for every sequence
LEAST_SAVING = 0.05  # of the longest sequence's bytes; with a smaller saving there is one group


class KVPlace(NamedTuple):
    """Place of a layer's keys and values: the group whose tables list its blocks, and its slot in a block."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True)
class KVGroups:
    """The groups of one model, the ones that look back farthest first."""

    spans: tuple[AttentionSpan, ...]
    places: tuple[KVPlace, ...]  # of each layer
    block_layers: int  # layers of one block
    block_size: int  # tokens
    chunk: int  # tokens of one sequence in one step

    @classmethod
    def of(cls, model: ModelSpec, max_model_len: int, block_size: int, chunk: int) -> KVGroups:
        """Return the groups with the fewest bytes for a sequence of `max_model_len` tokens, and among these the fewest.

        A window that such a sequence never leaves counts as none.
        """
        layers: dict[AttentionSpan, list[int]] = {}
        for i, layer in enumerate(model.layers):
            span = layer.mixer.span
            layers.setdefault(span if span.window < max_model_len else AttentionSpan(), []).append(i)
        together = {_widest(layers): list(range(model.num_layers))}

        def layer_blocks(kinds: dict[AttentionSpan, list[int]], size: int) -> int:
            """Return the blocks of one layer that the sequence holds, to which its bytes are proportional."""
            held = ((len(kinds[span]), span.most_blocks(max_model_len, block_size, chunk)) for span in kinds)
            return size * sum(-(-count // size) * blocks for count, blocks in held)

        def num_groups(size: int) -> int:
            return sum(-(-len(each) // size) for each in layers.values())

        sizes = [size for size in range(model.num_layers, 0, -1) if num_groups(size) <= MAX_GROUPS]
        best = min(sizes, key=lambda size: layer_blocks(layers, size))
        whole = layer_blocks(together, model.num_layers)
        if layer_blocks(layers, best) > (1 - LEAST_SAVING) * whole:
            layers, best = together, model.num_layers
        return cls.divided(layers, best, block_size, chunk)._beside(model.source)

    def _beside(self, source: ModelSpec | None) -> KVGroups:
        """Return these groups and one for cross attention, of as many layers, if the model has an encoder."""
        return self if source is None else replace(self, spans=(*self.spans, AttentionSpan(source=source.max_position)))

    @classmethod
    def divided(cls, layers: dict[AttentionSpan, list[int]], size: int, block_size: int, chunk: int) -> KVGroups:
        """Return the layers of each span in groups of `size`."""
        spans: list[AttentionSpan] = []
        places: dict[int, KVPlace] = {}
        for span in sorted(layers, key=_reach, reverse=True):
            for at, layer in enumerate(layers[span]):
                places[layer] = KVPlace(len(spans) + at // size, at % size)
            spans += [span] * -(-len(layers[span]) // size)
        return cls(tuple(spans), tuple(places[i] for i in sorted(places)), size, block_size, chunk)

    def blocks_of(self, num_tokens: int, chunk: int | None = None) -> int:
        """Return the most blocks that a sequence of `num_tokens` tokens holds at once; `chunk` replaces the own one."""
        chunk = self.chunk if chunk is None else chunk
        return sum(span.most_blocks(num_tokens, self.block_size, chunk) for span in self.spans)

    def cache(self, num_blocks: int, enable_prefix_caching: bool) -> CacheConfig:
        """Return the configuration of an engine's KV cache."""
        return CacheConfig(num_blocks, self.block_size, enable_prefix_caching, self.spans, self.chunk)


def _reach(span: AttentionSpan) -> float:
    return span.window or float("inf")


def _widest(layers: dict[AttentionSpan, list[int]]) -> AttentionSpan:
    """Return a span that covers all `layers`. Chunks beside windows need everything."""
    if any(span.is_chunked for span in layers):
        return AttentionSpan() if len(layers) > 1 else next(iter(layers))
    return max(layers, key=_reach)
