"""The weights of a model as they lie on its cores, and the order they are placed in: that of the graph.

Owns names, shapes and formats; what fills the memory is a `WeightSource`: a checkpoint, or an artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from server.config import WeightFormat, WeightFormats
from server.device.core import HostUse
from server.device.hbm import Buffer
from server.device.layout import FLOAT32_BYTES, WEIGHT_BYTES, is_scaled
from server.models.decoder import decoder_graph
from server.models.graph import Graph, layer_ops
from server.models.ops import Add, Embed, HeadNorm, Linear, Norm, Op, Vector
from server.models.spec import ModelSpec
from server.placement.core_share import DTYPE_BYTES
from server.placement.matrices import PackedShape, Widths
from server.placement.shard import ShardSpec

OnProgress = Callable[[str], None]  # called with a line for the user after each part of a long start


@dataclass(frozen=True, slots=True)
class PackedShard:
    """One core's tiles; for 8-bit formats also float32 scales and int32 sums of the columns, [n] each."""

    tiles: Buffer
    scales: Buffer | None = None
    sums: Buffer | None = None


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A linear layer in tiles of one format, one shard of this (padded) size on each core.

    The float32 biases of a core's outputs are beside its tiles; those of outputs that all cores share are there once.
    """

    shape: PackedShape
    weights: WeightFormat
    shards: tuple[PackedShard, ...]
    biases: tuple[Buffer, ...] = ()

    @property
    def n(self) -> int:
        """Outputs of one core, padded."""
        return self.shape.n

    @property
    def k(self) -> int:
        """Inputs of one core, padded."""
        return self.shape.k


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The whole model on its cores, by the names of its matrices and of its vectors' tensors."""

    embedding: tuple[Buffer, ...] | None  # row-major; None when tied: the output layer's tiles serve
    matrices: dict[str, PackedMatrix] = field(default_factory=dict)
    vectors: dict[str, Buffer] = field(default_factory=dict)  # float32

    def matrix(self, linear: Linear) -> PackedMatrix:
        """The matrix of a linear layer."""
        return self.matrices[linear.modules[0]]

    def vector(self, vector: Vector) -> Buffer:
        """A norm's weights."""
        return self.vectors[vector.tensor]


class WeightSource(Protocol):
    """Source of the bytes. Each method fills zeroed memory of one core and raises CheckpointError."""

    def matrix(self, shape: PackedShape, core: int, into: PackedShard) -> None:
        """Fill in the core's shard of a matrix, packed."""

    def vector(self, vector: Vector, offset: float, core: int, into: Buffer) -> None:
        """Fill the beginning of `into` with a tensor as float32, plus `offset`."""

    def bias(self, shape: PackedShape, core: int, into: Buffer) -> None:
        """Fill in the float32 biases of the core's outputs of a matrix."""

    def embedding(self, shape: PackedShape, core: int, into: Buffer) -> None:
        """Fill in the core's rows of an embedding that is not tied, row by row in the unquantized dtype."""

    def finish(self) -> None:
        """Wait until everything that the calls before have begun is in place."""


class WeightMemory(Protocol):
    """The memory of one core, real or on its way into a file."""

    index: int

    def allocate(self, use: HostUse, name: str, num_bytes: int) -> Buffer:
        """Zeroed memory, aligned to a cache line."""


def scales_name(shape: PackedShape) -> str:
    """Name of the scales of a packed matrix, in memory and in an artifact."""
    return f"{shape.name} scales"


def sums_name(shape: PackedShape) -> str:
    """Name of the column sums of a packed matrix."""
    return f"{shape.name} sums"


def bias_name(shape: PackedShape) -> str:
    """Name of the biases of a packed matrix."""
    return f"{shape.name} bias"


def embedding_shape(graph: Graph, widths: Widths) -> PackedShape:
    """Shape of the embedding seen as an output layer: a core has the rows of its part of the vocabulary."""
    table = Linear("embedding", (graph.embed.part,), graph.embed.hidden)
    return PackedShape(table, widths.vocab, widths.hidden)


class WeightLoader:
    """Takes memory from the cores, one matrix after the other, and has a source fill it: never two copies at once."""

    def __init__(
        self,
        source: WeightSource,
        spec: ModelSpec,
        shard: ShardSpec,
        cores: Sequence[WeightMemory],
        formats: WeightFormats,
    ) -> None:
        self._source, self._cores, self._formats = source, cores, formats
        self._graph, self._widths = decoder_graph(spec), Widths.of(spec, shard)

    def load(self, on_progress: OnProgress) -> ModelWeights:
        """Place everything, with a progress line for each layer. Raises CheckpointError and HostMemoryError."""
        graph = self._graph
        weights = ModelWeights(None if graph.is_tied else self._embedding())
        for i, layer in enumerate(graph.layers):
            on_progress(f"loading layer {i + 1}/{len(graph.layers)}")
            for op in layer_ops(layer):
                self._place(op, weights)
        self._place(graph.final_norm, weights)
        self._place(graph.head, weights)
        self._source.finish()
        return weights

    def _place(self, op: Op, weights: ModelWeights) -> None:
        """Place the weights of one op."""
        match op:
            case Linear():
                weights.matrices[op.modules[0]] = self._matrix(PackedShape.of(op, self._widths))
            case Norm() as norm:
                weights.vectors[norm.weight.tensor] = self._vector(norm.weight, norm.offset, self._widths.hidden)
            case Add(norm=Norm() as norm):
                self._place(norm, weights)
            case HeadNorm(query=query, key=key, offset=offset):
                for vector in (query, key):
                    weights.vectors[vector.tensor] = self._vector(vector, offset, vector.size)
            case _:
                assert not isinstance(op, Embed)  # placed before the layers

    def _matrix(self, shape: PackedShape) -> PackedMatrix:
        """Place one matrix: a shard on each core, in the format of its modules."""
        weights = shape.format_in(self._formats)
        shards = [self._shard_of(core, shape, weights) for core in self._cores]
        biases = self._biases(shape) if shape.linear.has_bias else ()
        return PackedMatrix(shape, weights, tuple(shards), biases)

    def _shard_of(self, core: WeightMemory, shape: PackedShape, weights: WeightFormat) -> PackedShard:
        tiles = core.allocate("weights", shape.name, shape.n * shape.k * WEIGHT_BYTES[weights])
        shard = PackedShard(tiles)
        if is_scaled(weights):
            scales = core.allocate("weights", scales_name(shape), shape.n * FLOAT32_BYTES)
            shard = PackedShard(tiles, scales, core.allocate("weights", sums_name(shape), shape.n * FLOAT32_BYTES))
        self._source.matrix(shape, core.index, shard)
        return shard

    def _biases(self, shape: PackedShape) -> tuple[Buffer, ...]:
        buffers = []
        for core in self._cores[: 1 if shape.linear.is_row_parallel else None]:
            buffers.append(core.allocate("weights", bias_name(shape), shape.n * FLOAT32_BYTES))
            self._source.bias(shape, core.index, buffers[-1])
        return tuple(buffers)

    def _vector(self, vector: Vector, offset: float, width: int) -> Buffer:
        """Place a vector on core 0 (the host keeps replicated values once), padded with zeros to `width`."""
        buffer = self._cores[0].allocate("weights", vector.tensor, width * FLOAT32_BYTES)
        self._source.vector(vector, offset, self._cores[0].index, buffer)
        return buffer

    def _embedding(self) -> tuple[Buffer, ...]:
        shape = embedding_shape(self._graph, self._widths)
        num_bytes = shape.n * shape.k * DTYPE_BYTES[self._formats.dtype]
        buffers = []
        for core in self._cores:
            buffers.append(core.allocate("weights", self._graph.embed.part.weight, num_bytes))
            self._source.embedding(shape, core.index, buffers[-1])
        return tuple(buffers)
