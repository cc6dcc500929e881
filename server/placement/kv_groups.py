"""How a model's layers share the blocks of the KV cache: groups that look back equally far, with a block table each.

A block is K and V of some tokens in as many layers as a group has, so that any group can use any block of the one pool
(the KV cache groups of vLLM). Layers that look back equally far are divided into groups of that size; the last group of
a kind may have fewer layers, and then what is left of its blocks is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from neuronserve.server.config import AttentionSpan, CacheConfig
from neuronserve.server.models.spec import ModelSpec

MAX_GROUPS = 8  # a step lays out a table for each, of every sequence
LEAST_SAVING = 0.05  # of what the longest sequence holds; for less there is one group


class KVPlace(NamedTuple):
    """Where a layer's keys and values are: whose tables say in which blocks, and which part of a block is its own."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True)
class KVGroups:
    """The groups of one model, those that look back the farthest first."""

    spans: tuple[AttentionSpan, ...]
    places: tuple[KVPlace, ...]  # of each layer
    block_layers: int  # that a block has room for
    block_size: int  # tokens
    chunk: int  # tokens of one sequence in one step

    @classmethod
    def of(cls, model: ModelSpec, max_model_len: int, block_size: int, chunk: int) -> KVGroups:
        """The groups with which a sequence of `max_model_len` tokens holds the fewest bytes; of equal ones the fewest.

        Windows that such a sequence never leaves are none.
        """
        layers: dict[AttentionSpan, list[int]] = {}
        for i, layer in enumerate(model.layers):
            span = layer.mixer.span
            layers.setdefault(span if span.window < max_model_len else AttentionSpan(), []).append(i)
        together = {_widest(layers): list(range(model.num_layers))}

        def layer_blocks(kinds: dict[AttentionSpan, list[int]], size: int) -> int:
            """Blocks of one layer that the sequence holds: what bytes are in proportion to."""
            held = ((len(kinds[span]), span.most_blocks(max_model_len, block_size, chunk)) for span in kinds)
            return size * sum(-(-count // size) * blocks for count, blocks in held)

        def num_groups(size: int) -> int:
            return sum(-(-len(each) // size) for each in layers.values())

        sizes = [size for size in range(model.num_layers, 0, -1) if num_groups(size) <= MAX_GROUPS]
        best = min(sizes, key=lambda size: layer_blocks(layers, size))
        whole = layer_blocks(together, model.num_layers)
        if layer_blocks(layers, best) > (1 - LEAST_SAVING) * whole:
            return cls.divided(together, model.num_layers, block_size, chunk)
        return cls.divided(layers, best, block_size, chunk)

    @classmethod
    def divided(cls, layers: dict[AttentionSpan, list[int]], size: int, block_size: int, chunk: int) -> KVGroups:
        """Layers of each span in groups of `size`."""
        spans: list[AttentionSpan] = []
        places: dict[int, KVPlace] = {}
        for span in sorted(layers, key=_reach, reverse=True):
            for at, layer in enumerate(layers[span]):
                places[layer] = KVPlace(len(spans) + at // size, at % size)
            spans += [span] * -(-len(layers[span]) // size)
        return cls(tuple(spans), tuple(places[i] for i in sorted(places)), size, block_size, chunk)

    def blocks_of(self, num_tokens: int, chunk: int | None = None) -> int:
        """Most blocks that a sequence of `num_tokens` tokens holds at once; `chunk` where it is another."""
        chunk = self.chunk if chunk is None else chunk
        return sum(span.most_blocks(num_tokens, self.block_size, chunk) for span in self.spans)

    def cache(self, num_blocks: int, enable_prefix_caching: bool) -> CacheConfig:
        """The KV cache of an engine."""
        return CacheConfig(num_blocks, self.block_size, enable_prefix_caching, self.spans, self.chunk)


def _reach(span: AttentionSpan) -> float:
    return span.window or float("inf")


def _widest(layers: dict[AttentionSpan, list[int]]) -> AttentionSpan:
    """A span within which all of them look; chunks and windows side by side see everything together."""
    if any(span.is_chunked for span in layers):
        return AttentionSpan() if len(layers) > 1 else next(iter(layers))
    return max(layers, key=_reach)
