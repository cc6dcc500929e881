"""Sizes of a model's matrices as they are packed on each core: padded to tiles, the same on every core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..config.formats import WeightFormat, WeightFormats
from ..device.hbm import ALIGNMENT
from ..device.layout import K_MULTIPLE, N_TILE, round_up, scale_bytes, tile_bytes
from ..models.decoder import decoder_graph
from ..models.graph import is_output, linears
from ..models.layer import AttentionSpec, LatentAttentionSpec
from ..models.linear import Axis, Linear, Vector
from ..models.spec import ModelSpec
from .shard import ShardSpec, intermediate_per_core


@dataclass(frozen=True, slots=True)
class AttentionWidths:
    """Widths of one layer's attention on one core, in elements; a layer that reads another's keys has queries alone."""

    qkv: int
    attended: int
    head: int

    @classmethod
    def of(cls, mixer: AttentionSpec, shard: ShardSpec) -> AttentionWidths:
        """Return the widths of a layer."""
        heads = shard.of_heads(mixer.heads)
        if isinstance(mixer, LatentAttentionSpec):
            queries, values = mixer.size + mixer.rotary, mixer.value_size
            qkv, attended = (round_up(heads.heads_per_core * size, K_MULTIPLE) for size in (queries, values))
            return cls(qkv, attended, round_up(mixer.head_dim, N_TILE))
        stored = heads.heads_per_core * (1 + mixer.has_gate) + 2 * heads.kv_heads_per_core
        attended = round_up(heads.heads_per_core * mixer.head_dim, K_MULTIPLE)
        return cls(
            qkv=round_up(stored * mixer.head_dim, N_TILE) if mixer.kv_source is None else attended,
            attended=attended,
            head=round_up(mixer.head_dim, N_TILE),
        )


@dataclass(frozen=True, slots=True)
class Widths:
    """Padded widths, in elements, of the matrices and activations on one core: of the widest layer."""

    hidden: int
    qkv: int
    attended: int
    intermediate: int
    vocab: int
    head: int
    shard: ShardSpec

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec) -> Widths:
        """Return the widths of a model's share, which are the same on every core."""
        layers = [AttentionWidths.of(each, shard) for each in model.attentions]
        return cls(
            hidden=round_up(max(model.hidden_size, model.stack.input.size), K_MULTIPLE),
            qkv=max(max(each.qkv, each.attended) for each in layers),  # queries of cross attention are there alone
            attended=max(each.attended for each in layers),
            intermediate=round_up(shard.intermediate_per_core, K_MULTIPLE),
            vocab=shard.vocab_per_core,
            head=max(each.head for each in layers),
            shard=shard,
        )

    def ffn(self, axis: Axis) -> int:
        """Return the width of a feed-forward network; experts, dense layers and shared networks differ in it."""
        tp = self.shard.expert_tp if axis.is_of_expert else self.shard.tp
        return round_up(intermediate_per_core(axis.units, tp), K_MULTIPLE)

    def inputs(self, axis: Axis) -> int:
        """Return the width of a layer's inputs."""
        if axis.name == "query":
            return round_up(self.shard.size(axis), K_MULTIPLE)
        if axis.name == "rows":
            return round_up(axis.size, K_MULTIPLE)
        return self.ffn(axis) if axis.name == "ffn" else self.hidden

    def outputs(self, linear: Linear) -> int:
        """Return the width of a layer's outputs. Queries may have keys and values beside them."""
        axis = linear.parts[0].outputs
        if axis.name in ("query", "kv"):
            multiple = N_TILE if len(linear.parts) > 1 else K_MULTIPLE
            return round_up(sum(self.shard.size(part.outputs) for part in linear.parts), multiple)
        widths = {"hidden": self.hidden, "ffn": self.ffn(axis), "vocab": self.vocab}
        return widths.get(axis.name, round_up(axis.size, N_TILE))


def stream_vector_size(vector: Vector) -> int:
    """Return the padded elements of a tensor of several streams, of which kernels read sixteen at once."""
    return round_up(vector.size + N_TILE, K_MULTIPLE)


@dataclass(frozen=True, slots=True)
class PackedShape:
    """Size of a linear layer on one core: n outputs by k inputs, padded to tiles, in the format of its modules."""

    linear: Linear
    n: int
    k: int

    @classmethod
    def of(cls, linear: Linear, widths: Widths) -> PackedShape:
        """Return the shape of `linear`. Outputs that another layer reads are padded to that layer's tiles."""
        if linear.is_router:
            return cls(linear, round_up(sum(part.outputs.size for part in linear.parts), N_TILE), widths.hidden)
        n = widths.outputs(linear) * (2 if linear.is_interleaved else 1)
        return cls(linear, n, widths.inputs(linear.inputs))

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules in the checkpoint. The first one names the matrix in memory and in artifacts."""
        return self.linear.modules

    @property
    def name(self) -> str:
        """Name of the matrix in memory and in an artifact."""
        return self.modules[0]

    def format_in(self, formats: WeightFormats) -> WeightFormat:
        """Return the format of the matrix.

        A router is float32, because small differences decide; a convolution over sound is not quantized.
        """
        if self.linear.is_router:
            return "float32"
        if self.linear.is_table or self.linear.inputs.name == "rows":
            return formats.dtype
        return formats.of(*self.modules, is_output=is_output(self.linear))

    def num_bytes(self, formats: WeightFormats) -> int:
        """Return the bytes of the tiles, and of the scales, sums or shifts beside them."""
        weights = self.format_in(formats)
        beside = scale_bytes(weights, formats.groups, self.n, self.k)
        return tile_bytes(weights, self.n, self.k) + sum(round_up(size, ALIGNMENT) for size in beside)


def packed_shapes(model: ModelSpec, shard: ShardSpec) -> Iterator[PackedShape]:
    """Return all matrices in the order of the graph, the output layer last."""
    widths = Widths.of(model, shard)
    return (PackedShape.of(linear, widths) for linear in linears(decoder_graph(model)))


def main_format(model: ModelSpec, formats: WeightFormats) -> WeightFormat:
    """Return the format of the first feed-forward layer, which most matrices have, by the name that users give it."""
    linear = next(each for each in linears(decoder_graph(model)) if each.parts[0].outputs.name == "ffn")
    found = formats.of(*linear.modules)
    return "int8" if found == "int8-rotated" else found
