"""One decoder-only transformer as a device program: the same kernels, layer after layer, for every architecture.

embed, then for each layer
  reduce_norm    hidden += the last layer's partial sums; normed panels
  matmul qkv     column-parallel, each core its heads
  rope_kv        bias, q/k norm, rotation, K and V to their slots
  attention      each core its heads
  matmul o       row-parallel: a partial sum on every core
  reduce_norm    the all-reduce and residual; normed panels
  matmul gate_up, gated, matmul down
then reduce_norm of the sampled rows and matmul lm_head: logits, vocabulary-parallel
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.config import CacheConfig, Dtype, KVCacheDtype, ModelSpec
from server.device.attention_layout import kv_head_bytes
from server.device.core import NeuronCore
from server.device.hbm import Buffer
from server.device.layout import K_TILES, N_TILE
from server.device.shard import ShardSpec
from server.engine.buffers import ActivationBuffers, ConstantTables, KVPool
from server.engine.load.weights import LayerWeights, ModelWeights, PackedMatrix
from server.kernels.dispatch import Isa, LinearKernels, linear_kernels, shared_kernels
from server.kernels.isa.jit import Kernel
from server.kernels.program import Program
from server.kernels.records import (
    STEP,
    AttentionOperands,
    EmbedOperands,
    MatmulOperands,
    NormOperands,
    PackOperands,
    RopeOperands,
)

Inputs = Sequence[tuple[int, int]]  # panels and row scales, for each core


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
    dtype: Dtype  # of activations
    kv_dtype: KVCacheDtype
    isa: Isa | None = None  # None = the host's best


def build_program(placement: Placement) -> Program:
    """The program of a placed model; it computes the rows of one step record."""
    return _Builder(placement).build()


def float_bits(value: float) -> int:
    """The bits of a float32: how operands, which are int64 words, hold real numbers."""
    return int(np.float32(value).view(np.uint32))


def _address(buffer: Buffer | None) -> int:
    return 0 if buffer is None else buffer.address


def _addresses(shards: Sequence[Buffer]) -> list[int]:
    return [shard.address for shard in shards]


class _Builder:
    def __init__(self, placement: Placement) -> None:
        self._at = placement
        self._spec, self._shard, self._buffers = placement.spec, placement.shard, placement.buffers
        block_size = placement.cache.block_size
        kv_dtype, head_dim = placement.kv_dtype, placement.spec.head_dim
        self._shared = shared_kernels(placement.dtype, head_dim, block_size, placement.isa, kv_dtype)
        self._kv_head_bytes = kv_head_bytes(placement.spec, kv_dtype, block_size)
        self._num_cores = len(placement.cores)
        self._width = placement.weights.lm_head.k
        self._program = Program("decoder", placement)

    def build(self) -> Program:
        weights = self._at.weights
        self._embed(weights)
        num_partials = 0
        for i, layer in enumerate(weights.layers):
            self._norm(f"layer {i} attention norm", layer.attention_norm, num_partials, None, layer.qkv)
            self._attention(i, layer)
            num_partials = self._num_cores
            self._norm(f"layer {i} ffn norm", layer.ffn_norm, num_partials, layer.o_bias, layer.gate_up)
            self._feed_forward(i, layer)
        self._logits(weights, num_partials)
        return self._program

    def _kernels(self, matrix: PackedMatrix) -> LinearKernels:
        return linear_kernels(matrix.weights, self._at.isa)

    def _embed(self, weights: ModelWeights) -> None:
        hidden, per_core, scale = self._buffers.hidden.address, self._shard.vocab_per_core, float_bits(1.0)
        if weights.embedding is not None:
            kernel = self._shared.embed_rows
            tables = [(part.address, 0) for part in weights.embedding]
        else:
            kernel = self._kernels(weights.lm_head).embed_tiles
            tables = [(part.tiles.address, _address(part.scales)) for part in weights.lm_head.shards]
        operands = [EmbedOperands(table, scales, hidden, per_core, self._width, scale) for table, scales in tables]
        self._program.add("embed", kernel, operands)

    def _norm(self, label: str, weight: Buffer, num_partials: int, bias: Buffer | None, reader: PackedMatrix) -> None:
        """The norm before `reader`, whose format decides the panels."""
        operands = [self._norm_operands(weight, num_partials, bias)]
        self._program.add(label, self._kernels(reader).reduce_norm, operands, num_partials > 1)

    def _norm_operands(self, weight: Buffer, num_partials: int, bias: Buffer | None) -> NormOperands:
        buffers = self._buffers
        return NormOperands(
            hidden=buffers.hidden.address,
            partials=buffers.partials.address,
            num_partials=num_partials,
            partial_stride=buffers.sizes.partial,
            bias=_address(bias),
            post_weight=0,
            weight=weight.address,
            panels=buffers.normed.address,
            row_scales=buffers.normed_scales.address,
            scratch=buffers.worker_scratch.address,
            width=self._width,
            size=self._spec.hidden_size,
            eps=float_bits(self._spec.rms_norm_eps),
            rows_field=STEP.num_tokens,
            index_field=0,
        )

    def _matmul_operands(
        self, matrix: PackedMatrix, inputs: Inputs, outputs: Sequence[int], ldc: int
    ) -> list[MatmulOperands]:
        """One shard on each core."""
        buffers = self._buffers
        return [
            MatmulOperands(
                activations=panels,
                row_scales=row_scales,
                weights=shard.tiles.address,
                column_scales=_address(shard.scales),
                column_sums=_address(shard.sums),
                output=output,
                n_tiles=matrix.n // N_TILE,
                k_tiles=matrix.k // K_TILES[matrix.weights],
                ldc=ldc,
                rows_field=STEP.num_tokens,
                scratch=buffers.worker_scratch.address,
                scratch_stride=buffers.sizes.worker_scratch,
                activation=0,
            )
            for (panels, row_scales), shard, output in zip(inputs, matrix.shards, outputs, strict=True)
        ]

    def _normed(self) -> Inputs:
        """The normed panels, which every core reads."""
        return [(self._buffers.normed.address, self._buffers.normed_scales.address)] * self._num_cores

    def _pack(self, label: str, kernel: Kernel, matrix: PackedMatrix, sources: Sequence[Buffer], to: Inputs) -> None:
        """Each core's activations to the panels that `matrix` reads."""
        operands = [
            PackOperands(source.address, panels, scales, matrix.k)
            for source, (panels, scales) in zip(sources, to, strict=True)
        ]
        self._program.add(f"{label} pack", kernel, operands)

    def _row_parallel(self, label: str, matrix: PackedMatrix, inputs: Inputs) -> None:
        """Leaves each core's partial sum for the all-reduce."""
        partials = [self._buffers.partials.address + c * self._buffers.sizes.partial for c in range(self._num_cores)]
        operands = self._matmul_operands(matrix, inputs, partials, self._width)
        self._program.add(label, self._kernels(matrix).matmul, operands)

    def _panels(self, panels: Sequence[Buffer]) -> Inputs:
        return [(p.address, scales.address) for p, scales in zip(panels, self._buffers.row_scales, strict=True)]

    def _attention(self, i: int, layer: LayerWeights) -> None:
        buffers, cores = self._buffers, range(self._num_cores)
        operands = self._matmul_operands(layer.qkv, self._normed(), _addresses(buffers.qkv), buffers.widths.qkv)
        self._program.add(f"layer {i} qkv", self._kernels(layer.qkv).matmul, operands)
        self._program.add(f"layer {i} rope", self._shared.rope_kv, [self._rope_operands(c, i, layer) for c in cores])
        attention = [self._attention_operands(c, i) for c in cores]
        self._program.add(f"layer {i} attention", self._shared.attention, attention)
        inputs = self._panels(buffers.attended_panels)
        self._pack(f"layer {i} o", self._kernels(layer.o).pack_rows, layer.o, buffers.attended, inputs)
        self._row_parallel(f"layer {i} o", layer.o, inputs)

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
            queries=self._buffers.queries[core].address,
            queries_width=self._buffers.widths.attended,
            block_bytes=self._kv_head_bytes,
        )

    def _attention_operands(self, core: int, i: int) -> AttentionOperands:
        sizes = self._buffers.sizes.attention
        return AttentionOperands(
            qkv=self._buffers.qkv[core].address,
            ldc=self._buffers.widths.qkv,
            k_cache=self._at.kv.k(core, i),
            v_cache=self._at.kv.v(core, i),
            output=self._buffers.attended[core].address,
            output_width=self._buffers.widths.attended,
            kv_heads=self._shard.kv_heads_per_core,
            head_dim=self._spec.head_dim,
            head_pad=self._buffers.widths.head,
            block_size=self._at.cache.block_size,
            window=self._spec.window(i),
            groups=self._at.tables.groups[core].address,
            scratch=self._buffers.worker_scratch.address,
            scratch_stride=self._buffers.sizes.worker_scratch,
            tile_tokens=sizes.tile_tokens,
            queries=self._buffers.queries[core].address,
            queries_width=self._buffers.widths.attended,
            block_bytes=self._kv_head_bytes,
            state_rows=sizes.state_rows,
            max_group=sizes.max_group,
            partials=self._buffers.partial_states.address,
            arrivals=self._buffers.arrivals.address,
        )

    def _feed_forward(self, i: int, layer: LayerWeights) -> None:
        buffers = self._buffers
        outputs, width = _addresses(buffers.activated), buffers.widths.intermediate
        operands = self._matmul_operands(layer.gate_up, self._normed(), outputs, width)
        first, then = self._kernels(layer.gate_up), self._kernels(layer.down)
        self._program.add(f"layer {i} gate_up", first.gated, operands)
        pack = then.repack if first.gated_leaves_panels else then.pack_rows
        inputs = self._panels(buffers.activated if pack is None else buffers.activated_panels)
        if pack is not None:
            self._pack(f"layer {i} down", pack, layer.down, buffers.activated, inputs)
        self._row_parallel(f"layer {i} down", layer.down, inputs)

    def _logits(self, weights: ModelWeights, num_partials: int) -> None:
        """Only the rows that will be sampled."""
        buffers, head = self._buffers, weights.lm_head
        norm = self._norm_operands(weights.final_norm, num_partials, None)
        norm = norm._replace(panels=buffers.sampled.address, rows_field=STEP.num_samples, index_field=STEP.sample_rows)
        self._program.add("final norm", self._kernels(head).reduce_norm, [norm], num_partials > 1)
        outputs = [buffers.logits.address + core * head.n * 4 for core in range(self._num_cores)]
        inputs = [(buffers.sampled.address, buffers.normed_scales.address)] * self._num_cores
        operands = self._matmul_operands(head, inputs, outputs, buffers.logits_width)
        operands = [o._replace(rows_field=STEP.num_samples) for o in operands]
        self._program.add("logits", self._kernels(head).matmul, operands)
