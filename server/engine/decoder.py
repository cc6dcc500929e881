"""One decoder-only transformer as a device program: the same kernels, layer after layer, for every architecture.

embed, then for each layer
  reduce_norm    hidden += the last layer's partial sums; normed panels
  matmul qkv     column-parallel, each core its heads
  rope_kv        bias, q/k norm, rotation, K and V to their slots
  attention      each core its heads
  matmul o       row-parallel: a partial sum on every core
  reduce_norm    the all-reduce and residual; normed panels
  matmul gate_up, swiglu, matmul down
then reduce_norm of the sampled rows and matmul lm_head: logits, vocabulary-parallel
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.config import CacheConfig, ModelSpec
from server.device.core import NeuronCore
from server.device.dispatch import KernelSet
from server.device.hbm import Buffer
from server.device.kernels.records import (
    STEP,
    AttentionOperands,
    EmbedOperands,
    MatmulOperands,
    NormOperands,
    RopeOperands,
    SwigluOperands,
)
from server.device.layout import K_TILE, N_TILE
from server.device.program import Program
from server.device.shard import ShardSpec
from server.engine.buffers import ActivationBuffers, ConstantTables, KVPool
from server.engine.weights import LayerWeights, ModelWeights, PackedMatrix


@dataclass(frozen=True, slots=True)
class Placement:
    """A model on its cores: everything that a program's operands point to."""

    spec: ModelSpec
    shard: ShardSpec
    cores: Sequence[NeuronCore]
    weights: ModelWeights
    tables: ConstantTables
    buffers: ActivationBuffers
    kv: KVPool
    cache: CacheConfig


def build_program(placement: Placement, kernels: KernelSet) -> Program:
    """The program of a placed model; it computes the rows of one step record."""
    return _Builder(placement, kernels).build()


def float_bits(value: float) -> int:
    """The bits of a float32: how operands, which are int64 words, hold real numbers."""
    return int(np.float32(value).view(np.uint32))


def _address(buffer: Buffer | None) -> int:
    return 0 if buffer is None else buffer.address


def _addresses(shards: Sequence[Buffer]) -> list[int]:
    return [shard.address for shard in shards]


class _Builder:
    def __init__(self, placement: Placement, kernels: KernelSet) -> None:
        self._at, self._kernels = placement, kernels
        self._spec, self._shard, self._buffers = placement.spec, placement.shard, placement.buffers
        self._num_cores = len(placement.cores)
        self._width = placement.weights.lm_head.k
        self._program = Program("decoder", placement)

    def build(self) -> Program:
        weights = self._at.weights
        self._embed(weights)
        num_partials = 0
        for i, layer in enumerate(weights.layers):
            self._norm(f"layer {i} attention norm", layer.attention_norm, num_partials, None)
            self._attention(i, layer)
            num_partials = self._num_cores
            self._norm(f"layer {i} ffn norm", layer.ffn_norm, num_partials, layer.o_bias)
            self._feed_forward(i, layer)
        self._logits(weights, num_partials)
        return self._program

    def _embed(self, weights: ModelWeights) -> None:
        kernel = self._kernels.embed_tiles if self._spec.is_tied else self._kernels.embed_rows
        hidden, per_core = self._buffers.hidden.address, self._shard.vocab_per_core
        operands = [EmbedOperands(part.address, hidden, per_core, self._width) for part in weights.embedding]
        self._program.add("embed", kernel, operands)

    def _norm(self, label: str, weight: Buffer, num_partials: int, bias: Buffer | None) -> None:
        self._program.add(label, self._kernels.reduce_norm, [self._norm_operands(weight, num_partials, bias)])

    def _norm_operands(self, weight: Buffer, num_partials: int, bias: Buffer | None) -> NormOperands:
        buffers = self._buffers
        return NormOperands(
            hidden=buffers.hidden.address,
            partials=buffers.partials.address,
            num_partials=num_partials,
            partial_stride=buffers.sizes.partial,
            bias=_address(bias),
            weight=weight.address,
            panels=buffers.normed.address,
            width=self._width,
            size=self._spec.hidden_size,
            eps=float_bits(self._spec.rms_norm_eps),
            rows_field=STEP.num_tokens,
            index_field=0,
        )

    def _matmul(self, label: str, matrix: PackedMatrix, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """One shard on each core; output rows are as wide as the shard."""
        self._program.add(label, self._kernels.matmul, self._matmul_operands(matrix, inputs, outputs))

    def _matmul_operands(
        self, matrix: PackedMatrix, inputs: Sequence[int], outputs: Sequence[int]
    ) -> list[MatmulOperands]:
        shapes = (matrix.n // N_TILE, matrix.k // K_TILE, matrix.n, STEP.num_tokens)
        return [
            MatmulOperands(source, shard.address, target, *shapes)
            for source, shard, target in zip(inputs, matrix.shards, outputs, strict=True)
        ]

    def _normed(self) -> list[int]:
        """The normed panels, which every core reads."""
        return [self._buffers.normed.address] * self._num_cores

    def _partials(self) -> list[int]:
        """Where each core leaves its part of a row-parallel matmul."""
        return [self._buffers.partials.address + c * self._buffers.sizes.partial for c in range(self._num_cores)]

    def _attention(self, i: int, layer: LayerWeights) -> None:
        buffers = self._buffers
        self._matmul(f"layer {i} qkv", layer.qkv, self._normed(), _addresses(buffers.qkv))
        cores = range(self._num_cores)
        self._program.add(f"layer {i} rope", self._kernels.rope_kv, [self._rope_operands(c, i, layer) for c in cores])
        self._program.add(
            f"layer {i} attention", self._kernels.attention, [self._attention_operands(c, i) for c in cores]
        )
        self._matmul(f"layer {i} o", layer.o, _addresses(buffers.attended), self._partials())

    def _rope_operands(self, core: int, i: int, layer: LayerWeights) -> RopeOperands:
        return RopeOperands(
            qkv=self._buffers.qkv[core].address,
            ldc=self._buffers.widths.qkv,
            bias=layer.qkv_bias[core].address if layer.qkv_bias else 0,
            q_norm=_address(layer.q_norm),
            k_norm=_address(layer.k_norm),
            cos=self._at.tables.cos.address,
            sin=self._at.tables.sin.address,
            k_cache=self._at.kv.k(core, i),
            v_cache=self._at.kv.v(core, i),
            heads=self._shard.heads_per_core,
            kv_heads=self._shard.kv_heads_per_core,
            head_dim=self._spec.head_dim,
            head_pad=self._buffers.widths.head,
            block_size=self._at.cache.block_size,
            eps=float_bits(self._spec.rms_norm_eps),
            scale=float_bits(1.0 / math.sqrt(self._spec.head_dim)),
        )

    def _attention_operands(self, core: int, i: int) -> AttentionOperands:
        return AttentionOperands(
            qkv=self._buffers.qkv[core].address,
            ldc=self._buffers.widths.qkv,
            k_cache=self._at.kv.k(core, i),
            v_cache=self._at.kv.v(core, i),
            panels=self._buffers.attended[core].address,
            k_tiles=self._buffers.widths.attended // K_TILE,
            kv_heads=self._shard.kv_heads_per_core,
            head_dim=self._spec.head_dim,
            head_pad=self._buffers.widths.head,
            block_size=self._at.cache.block_size,
            window=self._spec.window(i),
            groups=self._at.tables.groups[core].address,
            scratch=self._buffers.attention_scratch.address,
            scratch_stride=self._buffers.sizes.attention_scratch,
            tile_tokens=self._buffers.sizes.tile_tokens,
        )

    def _feed_forward(self, i: int, layer: LayerWeights) -> None:
        buffers, size = self._buffers, self._shard.intermediate_per_core
        self._matmul(f"layer {i} gate_up", layer.gate_up, self._normed(), _addresses(buffers.gate_up))
        operands = [
            SwigluOperands(source.address, target.address, size)
            for source, target in zip(buffers.gate_up, buffers.activated, strict=True)
        ]
        self._program.add(f"layer {i} swiglu", self._kernels.swiglu, operands)
        self._matmul(f"layer {i} down", layer.down, _addresses(buffers.activated), self._partials())

    def _logits(self, weights: ModelWeights, num_partials: int) -> None:
        """Only the rows that will be sampled."""
        buffers, head = self._buffers, weights.lm_head
        norm = self._norm_operands(weights.final_norm, num_partials, None)
        norm = norm._replace(panels=buffers.sampled.address, rows_field=STEP.num_samples, index_field=STEP.sample_rows)
        self._program.add("final norm", self._kernels.reduce_norm, [norm])
        outputs = [buffers.logits.address + core * head.n * 4 for core in range(self._num_cores)]
        operands = self._matmul_operands(head, [buffers.sampled.address] * self._num_cores, outputs)
        self._program.add(
            "logits",
            self._kernels.matmul,
            [o._replace(ldc=buffers.logits_width, rows_field=STEP.num_samples) for o in operands],
        )
