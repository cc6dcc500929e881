"""From checkpoint tensors to packed shards in the cores' memory, one matrix at a time: never two copies at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from server.config import ModelSpec, WeightFormat, WeightFormats
from server.device.core import NeuronCore
from server.device.footprint import MatrixShape, Widths, head_matrix, layer_matrices
from server.device.hbm import Buffer
from server.device.layout import pack_weights
from server.device.shard import ShardSpec
from server.engine.checkpoint import Checkpoint
from server.engine.quantize import quantize_rows
from server.engine.shard_reader import Matrix, ShardReader
from server.engine.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix


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


class WeightLoader:
    """Reads slices of a checkpoint, quantizes them where asked, and lays them on the cores."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        shard: ShardSpec,
        cores: Sequence[NeuronCore],
        formats: WeightFormats,
    ) -> None:
        self._spec, self._shard, self._cores, self._formats = spec, shard, cores, formats
        self._checkpoint, self._width = checkpoint, Widths.of(spec, shard).hidden
        self._plain = ShardReader(checkpoint, spec, shard, formats.dtype)
        self._exact = ShardReader(checkpoint, spec, shard, "float32")  # what quantization starts from

    def load(self, report: Callable[[str], None]) -> ModelWeights:
        """Everything, with a progress line for each layer. Raises CheckpointError and DeviceMemoryError."""
        name = EMBEDDING if self._spec.is_tied else LM_HEAD
        head = head_matrix(self._spec, self._shard)
        lm_head = self._packed(head, lambda reader, core: reader.vocabulary(name, core))
        embedding = None if self._spec.is_tied else self._embedding()
        layers = []
        for layer in range(self._spec.num_layers):
            report(f"loading layer {layer + 1}/{self._spec.num_layers}")
            layers.append(self._layer(layer))
        return ModelWeights(embedding, tuple(layers), self._vector(FINAL_NORM, self._width), lm_head)

    def _layer(self, layer: int) -> LayerWeights:
        prefix, spec = layer_prefix(layer), self._spec
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        shapes = layer_matrices(spec, self._shard, layer)
        q_norm = k_norm = None
        if spec.has_qk_norm:
            q_norm = self._vector(f"{attention}q_norm.weight", spec.head_dim)
            k_norm = self._vector(f"{attention}k_norm.weight", spec.head_dim)
        return LayerWeights(
            qkv=self._packed(shapes["qkv"], lambda reader, core: reader.qkv(attention, core)),
            o=self._packed(shapes["o"], lambda reader, core: reader.o(attention, core)),
            gate_up=self._packed(shapes["gate_up"], lambda reader, core: reader.gate_up(mlp, core)),
            down=self._packed(shapes["down"], lambda reader, core: reader.down(mlp, core)),
            attention_norm=self._vector(f"{prefix}input_layernorm.weight", self._width),
            ffn_norm=self._vector(f"{prefix}post_attention_layernorm.weight", self._width),
            qkv_bias=self._qkv_bias(attention) if spec.has_qkv_bias else None,
            o_bias=self._vector(f"{attention}o_proj.bias", self._width) if spec.has_o_bias else None,
            q_norm=q_norm,
            k_norm=k_norm,
        )

    def _packed(self, shape: MatrixShape, assemble: Callable[[ShardReader, int], Matrix]) -> PackedMatrix:
        """One matrix, its shard on each core in the format that its modules have."""
        weights = self._formats.of(*shape.modules)
        shards = [self._shard_of(core, shape, weights, assemble) for core in self._cores]
        return PackedMatrix(weights, shape.n, shape.k, tuple(shards))

    def _shard_of(
        self,
        core: NeuronCore,
        shape: MatrixShape,
        weights: WeightFormat,
        assemble: Callable[[ShardReader, int], Matrix],
    ) -> PackedShard:
        name = shape.modules[0]
        if weights == "bfloat16" or weights == "float32":  # noqa: PLR1714 - narrows the type
            matrix = assemble(self._plain, core.index)
            tiles = core.allocate("weights", name, matrix.nbytes)
            pack_weights(matrix, tiles.bytes)
            return PackedShard(tiles)
        quantized = quantize_rows(assemble(self._exact, core.index), weights)
        tiles = core.allocate("weights", name, quantized.codes.nbytes)
        pack_weights(quantized.codes, tiles.bytes)
        scales = core.allocate("weights", f"{name} scales", quantized.scales.nbytes)
        scales.array(np.float32, shape.n)[:] = quantized.scales
        sums = core.allocate("weights", f"{name} sums", quantized.sums.nbytes)
        sums.array(np.int32, shape.n)[:] = quantized.sums
        return PackedShard(tiles, scales, sums)

    def _vector(self, name: str, size: int) -> Buffer:
        """A float32 vector padded with zeros to `size`, on core 0 (the host keeps replicated values once)."""
        values = self._checkpoint.load(name)
        buffer = self._cores[0].allocate("weights", name, size * 4)
        buffer.array(np.float32, size)[: values.size] = values
        return buffer

    def _qkv_bias(self, prefix: str) -> tuple[Buffer, ...]:
        buffers = []
        for core in self._cores:
            values = self._plain.qkv_bias(prefix, core.index)
            buffer = core.allocate("weights", f"{prefix}qkv_bias", values.nbytes)
            buffer.array(np.float32, values.size)[:] = values
            buffers.append(buffer)
        return tuple(buffers)

    def _embedding(self) -> tuple[Buffer, ...]:
        buffers = []
        for core in self._cores:
            matrix = self._plain.vocabulary(EMBEDDING, core.index)
            buffer = core.allocate("weights", EMBEDDING, matrix.nbytes)
            buffer.array(matrix.dtype, *matrix.shape)[:] = matrix
            buffers.append(buffer)
        return tuple(buffers)
