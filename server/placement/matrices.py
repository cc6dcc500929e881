"""The matrices of a model as they are packed on each core: padded to tiles, every core the same sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuronserve.server.config.formats import WeightFormat, WeightFormats
from neuronserve.server.device.hbm import ALIGNMENT
from neuronserve.server.device.layout import K_MULTIPLE, N_TILE, round_up, scale_bytes, tile_bytes
from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.models.graph import is_output, linears
from neuronserve.server.models.linear import Axis, Linear
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.placement.shard import ShardSpec, intermediate_per_core


@dataclass(frozen=True, slots=True)
class Widths:
    """Padded widths, in elements, of the matrices and activations on one core."""

    hidden: int
    qkv: int
    attended: int
    intermediate: int
    vocab: int
    head: int
    tp: int
    expert_tp: int  # cores that one expert is divided over

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec) -> Widths:
        """Widths of a model's share, which are the same on every core."""
        heads = shard.heads_per_core + 2 * shard.kv_heads_per_core
        return cls(
            hidden=round_up(model.hidden_size, K_MULTIPLE),
            qkv=round_up(heads * model.head_dim, N_TILE),
            attended=round_up(shard.heads_per_core * model.head_dim, K_MULTIPLE),
            intermediate=round_up(shard.intermediate_per_core, K_MULTIPLE),
            vocab=shard.vocab_per_core,
            head=round_up(model.head_dim, N_TILE),
            tp=shard.tp,
            expert_tp=shard.expert_tp,
        )

    def ffn(self, axis: Axis) -> int:
        """Width of a feed-forward network, which experts, dense layers and shared networks have each of their own."""
        tp = self.expert_tp if axis.is_of_expert else self.tp
        return round_up(intermediate_per_core(axis.units, tp), K_MULTIPLE)

    def inputs(self, axis: Axis) -> int:
        """Width of what a layer reads."""
        return {"query": self.attended, "ffn": self.ffn(axis)}.get(axis.name, self.hidden)

    def outputs(self, axis: Axis, is_alone: bool) -> int:
        """Width of what a layer leaves; queries have keys and values beside them unless the axis is alone."""
        query = self.attended if is_alone else self.qkv
        widths = {"hidden": self.hidden, "ffn": self.ffn(axis), "vocab": self.vocab, "query": query}
        return widths.get(axis.name, round_up(axis.size, N_TILE))


@dataclass(frozen=True, slots=True)
class PackedShape:
    """Size of a linear layer on one core: n outputs by k inputs, padded to tiles, in the format of its modules."""

    linear: Linear
    n: int
    k: int

    @classmethod
    def of(cls, linear: Linear, widths: Widths) -> PackedShape:
        """Shape of `linear`; outputs that another layer reads have room for that layer's tiles."""
        axis = linear.parts[0].outputs
        if linear.is_router:
            return cls(linear, round_up(sum(part.outputs.size for part in linear.parts), N_TILE), widths.hidden)
        n = widths.outputs(axis, is_alone=len(linear.parts) == 1) * (2 if linear.is_interleaved else 1)
        return cls(linear, n, widths.inputs(linear.inputs))

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules by their names in the checkpoint; the first names the matrix in memory and in artifacts."""
        return self.linear.modules

    @property
    def name(self) -> str:
        """Name of the matrix in memory and in an artifact."""
        return self.modules[0]

    def format_in(self, formats: WeightFormats) -> WeightFormat:
        """Format of the matrix where these are the formats; a router's small differences decide, so it is exact."""
        if self.linear.is_router:
            return "float32"
        return formats.of(*self.modules, is_output=is_output(self.linear))

    def num_bytes(self, formats: WeightFormats) -> int:
        """Tiles, and what lies beside them: scales, and sums or shifts."""
        weights = self.format_in(formats)
        beside = scale_bytes(weights, formats.groups, self.n, self.k)
        return tile_bytes(weights, self.n, self.k) + sum(round_up(size, ALIGNMENT) for size in beside)


def packed_shapes(model: ModelSpec, shard: ShardSpec) -> Iterator[PackedShape]:
    """All matrices in the order of the graph, the output layer last."""
    widths = Widths.of(model, shard)
    return (PackedShape.of(linear, widths) for linear in linears(decoder_graph(model)))


def main_format(model: ModelSpec, formats: WeightFormats) -> WeightFormat:
    """Return the format of most matrices, by the name that users give it: that of the first feed-forward layer's."""
    linear = next(each for each in linears(decoder_graph(model)) if each.parts[0].outputs.name == "ffn")
    found = formats.of(*linear.modules)
    return "int8" if found == "int8-rotated" else found
