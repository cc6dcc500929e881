"""From checkpoint tensors to packed shards in the cores' memory, one matrix at a time: never two copies at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from server.config import Dtype, ModelSpec
from server.device.core import NeuronCore
from server.device.hbm import Buffer
from server.device.layout import K_TILE, N_TILE, interleave, pack_weights, round_up
from server.device.shard import ShardSpec
from server.engine.checkpoint import Checkpoint
from server.engine.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, layer_prefix

Matrix = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [n, k] in tiles, one shard of this (padded) size on each core."""

    n: int
    k: int
    shards: tuple[Buffer, ...]


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

    embedding: tuple[Buffer, ...]  # row-major, or the output layer's tiles when tied
    layers: tuple[LayerWeights, ...]
    final_norm: Buffer
    lm_head: PackedMatrix


class WeightLoader:
    """Reads slices of a checkpoint and lays them on the cores."""

    def __init__(
        self, checkpoint: Checkpoint, spec: ModelSpec, shard: ShardSpec, cores: Sequence[NeuronCore], dtype: Dtype
    ) -> None:
        self.spec, self.shard, self._cores = spec, shard, cores
        self._cell: npt.DTypeLike = np.uint16 if dtype == "bfloat16" else np.float32
        self._read = checkpoint.load_bf16 if dtype == "bfloat16" else checkpoint.load
        self._read_vector = checkpoint.load
        self.width = round_up(spec.hidden_size, K_TILE)

    def load(self, report: Callable[[str], None]) -> ModelWeights:
        """Everything, with a progress line for each layer. Raises CheckpointError and DeviceMemoryError."""
        lm_head = self._lm_head()
        embedding = lm_head.shards if self.spec.is_tied else self._embedding()
        layers = []
        for layer in range(self.spec.num_layers):
            report(f"loading layer {layer + 1}/{self.spec.num_layers}")
            layers.append(self._layer(layer))
        return ModelWeights(embedding, tuple(layers), self._vector(FINAL_NORM, self.width), lm_head)

    def _layer(self, layer: int) -> LayerWeights:
        prefix, spec = layer_prefix(layer), self.spec
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        q_norm = k_norm = None
        if spec.has_qk_norm:
            q_norm = self._vector(f"{attention}q_norm.weight", spec.head_dim)
            k_norm = self._vector(f"{attention}k_norm.weight", spec.head_dim)
        return LayerWeights(
            qkv=self._sharded(f"{prefix}qkv", lambda core: self._qkv(attention, core)),
            o=self._sharded(f"{attention}o_proj", lambda core: self._o(attention, core)),
            gate_up=self._sharded(f"{mlp}gate_up", lambda core: self._gate_up(mlp, core)),
            down=self._sharded(f"{mlp}down_proj", lambda core: self._down(mlp, core)),
            attention_norm=self._vector(f"{prefix}input_layernorm.weight", self.width),
            ffn_norm=self._vector(f"{prefix}post_attention_layernorm.weight", self.width),
            qkv_bias=self._qkv_bias(attention) if spec.has_qkv_bias else None,
            o_bias=self._vector(f"{attention}o_proj.bias", self.width) if spec.has_o_bias else None,
            q_norm=q_norm,
            k_norm=k_norm,
        )

    def _sharded(self, name: str, matrix_of: Callable[[int], Matrix]) -> PackedMatrix:
        """One matrix on each core, all of one padded shape."""
        buffers = []
        for core in self._cores:
            matrix = matrix_of(core.index)
            buffer = core.allocate("weights", name, matrix.nbytes)
            pack_weights(matrix, buffer.bytes)
            buffers.append(buffer)
        n, k = matrix.shape
        return PackedMatrix(n, k, tuple(buffers))

    def _zeros(self, rows: int, columns: int) -> Matrix:
        """Padded to whole tiles."""
        return np.zeros((round_up(rows, N_TILE), round_up(columns, K_TILE)), self._cell)

    def _vector(self, name: str, size: int) -> Buffer:
        """A float32 vector padded with zeros to `size`, on core 0 (the host keeps replicated values once)."""
        values = self._read_vector(name)
        buffer = self._cores[0].allocate("weights", name, size * 4)
        buffer.array(np.float32, size)[: values.size] = values
        return buffer

    def _head_slices(self, core: int) -> list[tuple[str, int, slice]]:
        """(projection, first local row, rows of the checkpoint tensor) of every head on `core`, padding left out."""
        size, slices, row = self.spec.head_dim, [], 0
        kv_heads = self.shard.kv_heads(core)
        for projection, heads in (("q", self.shard.q_heads(core)), ("k", kv_heads), ("v", kv_heads)):
            for head in heads:
                if head >= 0:
                    slices.append((projection, row, slice(head * size, (head + 1) * size)))
                row += size
        return slices

    def qkv_rows(self) -> int:
        """Output width of the qkv matmul on each core, padding to tiles left out."""
        return (self.shard.heads_per_core + 2 * self.shard.kv_heads_per_core) * self.spec.head_dim

    def _qkv(self, prefix: str, core: int) -> Matrix:
        matrix = self._zeros(self.qkv_rows(), self.spec.hidden_size)
        for projection, row, rows in self._head_slices(core):
            part = self._read(f"{prefix}{projection}_proj.weight", rows)
            matrix[row : row + self.spec.head_dim, : self.spec.hidden_size] = part
        return matrix

    def _qkv_bias(self, prefix: str) -> tuple[Buffer, ...]:
        buffers = []
        size = round_up(self.qkv_rows(), N_TILE)
        for core in self._cores:
            buffer = core.allocate("weights", f"{prefix}qkv_bias", size * 4)
            values = buffer.array(np.float32, size)
            for projection, row, rows in self._head_slices(core.index):
                values[row : row + self.spec.head_dim] = self._read_vector(f"{prefix}{projection}_proj.bias", rows)
            buffers.append(buffer)
        return tuple(buffers)

    def _o(self, prefix: str, core: int) -> Matrix:
        size, heads = self.spec.head_dim, self.shard.q_heads(core)
        matrix = self._zeros(self.width, len(heads) * size)
        for slot, head in enumerate(heads):
            if head >= 0:
                part = self._read(f"{prefix}o_proj.weight", None, slice(head * size, (head + 1) * size))
                matrix[: self.spec.hidden_size, slot * size : (slot + 1) * size] = part
        return matrix

    def _intermediate(self, core: int) -> slice:
        """This core's part of the feed-forward dimension; may be shorter than the padded size, or empty."""
        size = self.shard.intermediate_per_core
        return slice(*(min(size * i, self.spec.intermediate_size) for i in (core, core + 1)))

    def _gate_up(self, prefix: str, core: int) -> Matrix:
        part, halves = self._intermediate(core), []
        for projection in ("gate", "up"):
            matrix = self._zeros(self.shard.intermediate_per_core, self.spec.hidden_size)
            rows = self._read(f"{prefix}{projection}_proj.weight", part)
            matrix[: len(rows), : self.spec.hidden_size] = rows
            halves.append(matrix)
        return interleave(*halves)

    def _down(self, prefix: str, core: int) -> Matrix:
        matrix = self._zeros(self.width, self.shard.intermediate_per_core)
        columns = self._read(f"{prefix}down_proj.weight", None, self._intermediate(core))
        matrix[: self.spec.hidden_size, : columns.shape[1]] = columns
        return matrix

    def _vocab(self, name: str, core: int) -> Matrix:
        size = self.shard.vocab_per_core
        matrix = self._zeros(size, self.spec.hidden_size)
        rows = self._read(name, slice(core * size, (core + 1) * size))
        matrix[: len(rows), : self.spec.hidden_size] = rows
        return matrix

    def _lm_head(self) -> PackedMatrix:
        name = EMBEDDING if self.spec.is_tied else LM_HEAD
        return self._sharded(name, lambda core: self._vocab(name, core))

    def _embedding(self) -> tuple[Buffer, ...]:
        buffers = []
        for core in self._cores:
            matrix = self._vocab(EMBEDDING, core.index)
            buffer = core.allocate("weights", EMBEDDING, matrix.nbytes)
            buffer.array(self._cell, *matrix.shape)[:] = matrix
            buffers.append(buffer)
        return tuple(buffers)
