"""The weights of a model as they lie on its cores, and the order they are placed in.

Knows names, shapes and formats; what fills the memory is a `WeightSource`: a checkpoint, or an artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from server.checkpoint.tensor_names import EMBEDDING, FINAL_NORM, layer_prefix
from server.config import ModelSpec, WeightFormat, WeightFormats
from server.device.footprint import DTYPE_BYTES, MatrixShape, Widths, head_matrix, layer_matrices
from server.device.hbm import Buffer
from server.device.layout import WEIGHT_BYTES, is_scaled
from server.device.ledger import Use
from server.device.shard import ShardSpec


@dataclass(frozen=True, slots=True)
class PackedShard:
    """One core's tiles; for 8-bit formats also float32 scales and int32 sums of the columns, [n] each."""

    tiles: Buffer
    scales: Buffer | None = None
    sums: Buffer | None = None


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [n, k] in tiles of one format, one shard of this (padded) size on each core."""

    weights: WeightFormat
    n: int
    k: int
    shards: tuple[PackedShard, ...]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Vectors are float32, None where the model has none."""

    qkv: PackedMatrix  # n = query heads, then k heads, then v heads
    o: PackedMatrix
    gate_up: PackedMatrix  # n = 16 of gate, 16 of up, ...
    down: PackedMatrix
    attention_norm: Buffer
    ffn_norm: Buffer
    qkv_bias: tuple[Buffer, ...] | None
    o_bias: Buffer | None
    q_norm: Buffer | None
    k_norm: Buffer | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The whole model on its cores."""

    embedding: tuple[Buffer, ...] | None  # row-major; None when tied: the output layer's tiles serve
    layers: tuple[LayerWeights, ...]
    final_norm: Buffer
    lm_head: PackedMatrix


class WeightSource(Protocol):
    """Where the bytes come from. Each method fills zeroed memory of one core and raises CheckpointError."""

    def matrix(self, matrix: MatrixShape, core: int, into: PackedShard) -> None:
        """The core's shard of `matrix`, packed."""

    def vector(self, name: str, core: int, into: Buffer) -> None:
        """A tensor as float32, at the beginning of `into`."""

    def qkv_bias(self, name: str, core: int, into: Buffer) -> None:
        """The float32 biases of the core's rows of q, k and v; `name` is as `qkv_bias_name` says."""

    def embedding(self, core: int, into: Buffer) -> None:
        """The core's rows of an embedding that is not tied, row by row in the unquantized dtype."""

    def finish(self) -> None:
        """After the last call: everything that was asked for is in place when this returns."""


class CoreMemory(Protocol):
    """The memory of one core, real or on its way into a file."""

    index: int

    def allocate(self, use: Use, name: str, num_bytes: int) -> Buffer:
        """Zeroed memory, aligned to a cache line."""


def scales_name(matrix: MatrixShape) -> str:
    """How the scales of a packed matrix are called, in the ledger and in an artifact."""
    return f"{matrix.modules[0]} scales"


def sums_name(matrix: MatrixShape) -> str:
    return f"{matrix.modules[0]} sums"


def qkv_bias_name(attention: str) -> str:
    """`attention` is a prefix such as `model.layers.0.self_attn.`."""
    return f"{attention}qkv_bias"


class WeightLoader:
    """Takes memory from the cores, one matrix after the other, and has a source fill it: never two copies at once."""

    def __init__(
        self,
        source: WeightSource,
        spec: ModelSpec,
        shard: ShardSpec,
        cores: Sequence[CoreMemory],
        formats: WeightFormats,
    ) -> None:
        self._source, self._spec, self._shard, self._cores, self._formats = source, spec, shard, cores, formats
        self._widths = Widths.of(spec, shard)

    def load(self, report: Callable[[str], None]) -> ModelWeights:
        """Everything, with a progress line for each layer. Raises CheckpointError and DeviceMemoryError."""
        lm_head = self._packed(head_matrix(self._spec, self._shard))
        embedding = None if self._spec.is_tied else self._embedding()
        layers = []
        for layer in range(self._spec.num_layers):
            report(f"loading layer {layer + 1}/{self._spec.num_layers}")
            layers.append(self._layer(layer))
        final_norm = self._vector(FINAL_NORM, self._widths.hidden)
        self._source.finish()
        return ModelWeights(embedding, tuple(layers), final_norm, lm_head)

    def _layer(self, layer: int) -> LayerWeights:
        prefix, spec, hidden = layer_prefix(layer), self._spec, self._widths.hidden
        attention = f"{prefix}self_attn."
        shapes = layer_matrices(spec, self._shard, layer)
        q_norm = k_norm = None
        if spec.has_qk_norm:
            q_norm = self._vector(f"{attention}q_norm.weight", spec.head_dim)
            k_norm = self._vector(f"{attention}k_norm.weight", spec.head_dim)
        return LayerWeights(
            qkv=self._packed(shapes["qkv"]),
            o=self._packed(shapes["o"]),
            gate_up=self._packed(shapes["gate_up"]),
            down=self._packed(shapes["down"]),
            attention_norm=self._vector(f"{prefix}input_layernorm.weight", hidden),
            ffn_norm=self._vector(f"{prefix}post_attention_layernorm.weight", hidden),
            qkv_bias=self._qkv_bias(qkv_bias_name(attention)) if spec.has_qkv_bias else None,
            o_bias=self._vector(f"{attention}o_proj.bias", hidden) if spec.has_o_bias else None,
            q_norm=q_norm,
            k_norm=k_norm,
        )

    def _packed(self, matrix: MatrixShape) -> PackedMatrix:
        """One matrix, its shard on each core in the format that its modules have."""
        weights = self._formats.of(*matrix.modules)
        shards = [self._shard_of(core, matrix, weights) for core in self._cores]
        return PackedMatrix(weights, matrix.n, matrix.k, tuple(shards))

    def _shard_of(self, core: CoreMemory, matrix: MatrixShape, weights: WeightFormat) -> PackedShard:
        tiles = core.allocate("weights", matrix.modules[0], matrix.n * matrix.k * WEIGHT_BYTES[weights])
        shard = PackedShard(tiles)
        if is_scaled(weights):
            scales = core.allocate("weights", scales_name(matrix), matrix.n * 4)
            shard = PackedShard(tiles, scales, core.allocate("weights", sums_name(matrix), matrix.n * 4))
        self._source.matrix(matrix, core.index, shard)
        return shard

    def _vector(self, name: str, size: int) -> Buffer:
        """A float32 vector padded with zeros to `size`, on core 0 (the host keeps replicated values once)."""
        buffer = self._cores[0].allocate("weights", name, size * 4)
        self._source.vector(name, self._cores[0].index, buffer)
        return buffer

    def _qkv_bias(self, name: str) -> tuple[Buffer, ...]:
        buffers = []
        for core in self._cores:
            buffers.append(core.allocate("weights", name, self._widths.qkv * 4))
            self._source.qkv_bias(name, core.index, buffers[-1])
        return tuple(buffers)

    def _embedding(self) -> tuple[Buffer, ...]:
        num_bytes = self._widths.vocab * self._widths.hidden * DTYPE_BYTES[self._formats.dtype]
        buffers = []
        for core in self._cores:
            buffers.append(core.allocate("weights", EMBEDDING, num_bytes))
            self._source.embedding(core.index, buffers[-1])
        return tuple(buffers)
