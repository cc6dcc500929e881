"""The weights of a model on its cores, allocated in the order of the graph.

Owns names, shapes and formats; a `WeightSource`, a checkpoint or an artifact, fills the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...config.formats import DEFAULT_GROUPS, WeightFormat, WeightFormats, WeightGroups
from ...device.core import HostUse
from ...device.hbm import Buffer
from ...device.layout import FLOAT32_BYTES, K_MULTIPLE, N_TILE, round_up, scale_bytes, tile_bytes
from ...models.decoder import decoder_graph
from ...models.graph import Graph, flat_ops
from ...models.linear import Linear, Vector
from ...models.ops import (
    Add,
    AddRows,
    Embed,
    Experts,
    HeadNorm,
    LatentAttention,
    LayerNorm,
    Norm,
    NormOutput,
    Op,
    StreamNorm,
)
from ...models.spec import ModelSpec
from ...models.stream_ops import ChangeStreams
from ...models.tensors import op_vectors
from ...placement.core_share import DTYPE_BYTES
from ...placement.matrices import PackedShape, Widths, stream_vector_size
from ...placement.shard import ShardSpec

OnProgress = Callable[[str], None]  # called with lines for the user during a long start


@dataclass(frozen=True, slots=True)
class PackedShard:
    """One core's tiles; for 8-bit formats also float32 scales and int32 sums of the columns, [n] each.

    Formats with groups have scales of each column's groups, and asymmetric int4 has shifts of them in place of sums.
    """

    tiles: Buffer
    scales: Buffer | None = None
    sums: Buffer | None = None


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A linear layer in tiles of one format, one shard of this (padded) size on each core.

    The float32 biases of a core's outputs are beside its tiles; biases of outputs that all cores share exist once.
    """

    shape: PackedShape
    weights: WeightFormat
    shards: tuple[PackedShard, ...]
    biases: tuple[Buffer, ...] = ()
    groups: WeightGroups = DEFAULT_GROUPS  # of int4

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
    """The whole model on its cores, by names of matrices and of vectors' tensors."""

    embedding: tuple[Buffer, ...] | None  # row-major; None when tied: the output layer's tiles serve
    matrices: dict[str, PackedMatrix] = field(default_factory=dict)
    tables: dict[str, Buffer] = field(default_factory=dict)  # row-major, unquantized, on the first core
    rows: dict[str, tuple[Buffer, ...]] = field(default_factory=dict)  # row-major, unquantized, each core its outputs
    vectors: dict[str, tuple[Buffer, ...]] = field(default_factory=dict)  # float32; one buffer a core if divided
    embedded: PackedMatrix | None = None  # an output layer that serves as the embedding of a graph without one

    def matrix(self, linear: Linear) -> PackedMatrix:
        """Return the matrix of a linear layer."""
        return self.matrices[linear.modules[0]]

    def embedding_tiles(self, graph: Graph) -> PackedMatrix | None:
        """Return the output layer that serves as the embedding; None where that has a table."""
        return (self.embedded or self.matrix(graph.head)) if self.embedding is None else None

    def vector(self, vector: Vector, core: int = 0) -> Buffer:
        """Return a norm's weights, or `core`'s part if they are divided."""
        return self.vectors[vector.tensor][core if vector.axis else 0]


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
        """Wait until all memory of earlier calls is filled."""


class WeightMemory(Protocol):
    """The memory of one core, or a file that becomes it."""

    index: int

    def allocate(self, use: HostUse, name: str, num_bytes: int) -> Buffer:
        """Return zeroed memory, aligned to a cache line."""


def scales_name(shape: PackedShape) -> str:
    """Name of the scales of a packed matrix, in memory and in an artifact."""
    return f"{shape.name} scales"


def sums_name(shape: PackedShape) -> str:
    """Name of the column sums, or shifts, of a packed matrix."""
    return f"{shape.name} sums"


def bias_name(shape: PackedShape) -> str:
    """Name of the biases of a packed matrix."""
    return f"{shape.name} bias"


def embedding_shape(graph: Graph, widths: Widths) -> PackedShape:
    """Shape of the embedding as an output layer: a core has the rows of its part of the vocabulary."""
    table = Linear("embedding", (graph.embed.table,), graph.embed.hidden)
    return PackedShape(table, widths.vocab, widths.hidden)


def rows_shape(op: AddRows, widths: Widths) -> PackedShape:
    """Shape of a table of rows as an output layer."""
    return PackedShape(Linear(op.by, (op.table,), op.hidden), round_up(op.table.outputs.size, N_TILE), widths.hidden)


class WeightLoader:
    """Allocates memory of the cores, one matrix after the other, and lets a source fill it: no second copy is made."""

    def __init__(
        self,
        source: WeightSource,
        spec: ModelSpec,
        shard: ShardSpec,
        cores: Sequence[WeightMemory],
        formats: WeightFormats,
    ) -> None:
        self._source, self._cores, self._formats = source, cores, formats
        self._graph, self._widths, self._shard = decoder_graph(spec), Widths.of(spec, shard), shard

    def load(self, on_progress: OnProgress, is_last: bool = True) -> ModelWeights:
        """Load all weights, with a progress line for each layer. Raises CheckpointError and HostMemoryError.

        The source is finished unless another model of it is loaded afterwards.
        """
        graph = self._graph
        has_table = not graph.is_tied and not graph.embed.is_shared
        weights = ModelWeights(self._row_major(embedding_shape(graph, self._widths)) if has_table else None)
        for op in graph.prelude:
            self._place(op, weights)
        for i in graph.stored_layers():
            on_progress(f"loading layer {i + 1}/{len(graph.layers)}")
            for op in flat_ops(graph.layers[i]):
                self._place(op, weights)
        for op in graph.tail:
            self._place(op, weights)
        if is_last:
            self._source.finish()
        return weights

    def _place(self, op: Op, weights: ModelWeights) -> None:
        """Place the weights of one op."""
        match op:
            case Linear(is_table=True):
                weights.rows[op.modules[0]] = self._row_major(PackedShape.of(op, self._widths))
            case Linear():
                weights.matrices[op.modules[0]] = self._matrix(PackedShape.of(op, self._widths), self._cores)
            case LatentAttention() | ChangeStreams():
                for vector in op_vectors(op):
                    is_latent = isinstance(op, LatentAttention)
                    width = round_up(vector.size, K_MULTIPLE) if is_latent else stream_vector_size(vector)
                    weights.vectors[vector.tensor] = self._vector(vector, 0.0, width)
            case Experts():
                self._experts(op, weights)
            case AddRows(table=table):
                weights.tables[table.weight] = self._table(rows_shape(op, self._widths))
            case Add(norm=Norm() as norm) | StreamNorm(norm=norm) | NormOutput(norm=norm):
                self._place(norm, weights)
            case _:
                assert not isinstance(op, Embed)  # placed before the layers
                for vector in op_vectors(op):
                    biases = (op.bias,) if isinstance(op, LayerNorm) else op.biases if isinstance(op, HeadNorm) else ()
                    is_bias = vector in biases
                    offset = op.offset if isinstance(op, Norm | LayerNorm | HeadNorm) and not is_bias else 0.0
                    width = self._widths.hidden if isinstance(op, Norm | LayerNorm) else vector.size
                    weights.vectors[vector.tensor] = self._vector(vector, offset, width)

    def _experts(self, op: Experts, weights: ModelWeights) -> None:
        """Place the router, each expert on the cores that hold it or a part of it, and the shared network."""
        for each in (op.router, op.router_norm, *op.shared):
            if each is not None:
                self._place(each, weights)
        for vector in op.vectors:
            weights.vectors[vector.tensor] = self._vector(vector, 0.0, vector.size)
        for i in range(op.count):
            cores = [core for core in self._cores if i in self._shard.experts(op.count, core.index)]
            for linear in (each for each in op.network(i) if isinstance(each, Linear)):
                weights.matrices[linear.modules[0]] = self._matrix(PackedShape.of(linear, self._widths), cores)

    def _matrix(self, shape: PackedShape, cores: Sequence[WeightMemory]) -> PackedMatrix:
        """Place one matrix: a shard on each of `cores`, in the format of its modules."""
        weights = shape.format_in(self._formats)
        shards = [self._shard_of(core, shape, weights) for core in cores]
        biases = self._biases(shape, cores) if shape.linear.has_bias else ()
        return PackedMatrix(shape, weights, tuple(shards), biases, self._formats.groups)

    def _shard_of(self, core: WeightMemory, shape: PackedShape, weights: WeightFormat) -> PackedShard:
        tiles = core.allocate("weights", shape.name, tile_bytes(weights, shape.n, shape.k))
        names = scales_name(shape), sums_name(shape)
        sizes = scale_bytes(weights, self._formats.groups, shape.n, shape.k)
        scales, sums = (
            core.allocate("weights", name, size) if size else None for name, size in zip(names, sizes, strict=True)
        )
        shard = PackedShard(tiles, scales, sums)
        self._source.matrix(shape, core.index, shard)
        return shard

    def _biases(self, shape: PackedShape, cores: Sequence[WeightMemory]) -> tuple[Buffer, ...]:
        buffers = []
        for core in cores[: 1 if shape.linear.is_row_parallel else None]:
            buffers.append(core.allocate("weights", bias_name(shape), shape.n * FLOAT32_BYTES))
            self._source.bias(shape, core.index, buffers[-1])
        return tuple(buffers)

    def _vector(self, vector: Vector, offset: float, width: int) -> tuple[Buffer, ...]:
        """Place a vector on core 0 (the host keeps replicated values once), padded with zeros to `width`.

        A divided vector is on every core, each its part.
        """
        if vector.axis is not None:
            width = self._shard.vector_size(vector)
        buffers = []
        for core in self._cores[: None if vector.axis else 1]:
            buffers.append(core.allocate("weights", vector.tensor, width * FLOAT32_BYTES))
            self._source.vector(vector, offset, core.index, buffers[-1])
        return tuple(buffers)

    def _table(self, shape: PackedShape) -> Buffer:
        """Place a table of rows on core 0."""
        core = self._cores[0]
        num_bytes = shape.n * shape.k * DTYPE_BYTES[self._formats.dtype]
        buffer = core.allocate("weights", shape.linear.parts[0].weight, num_bytes)
        self._source.embedding(shape, core.index, buffer)
        return buffer

    def _row_major(self, shape: PackedShape) -> tuple[Buffer, ...]:
        """Place a table of rows, each core its outputs."""
        num_bytes = shape.n * shape.k * DTYPE_BYTES[self._formats.dtype]
        buffers = []
        for core in self._cores:
            buffers.append(core.allocate("weights", shape.linear.parts[0].weight, num_bytes))
            self._source.embedding(shape, core.index, buffers[-1])
        return tuple(buffers)
