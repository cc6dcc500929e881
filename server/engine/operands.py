"""A placed model's addresses as the operands of kernels: one record a core, of one instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.config import CacheConfig, Dtype, KVCacheDtype
from server.device.core import NeuronCore
from server.device.hbm import Buffer
from server.device.layout import K_TILES, N_TILE
from server.engine.buffers import ActivationBuffers, ConstantTables, KVPool
from server.engine.load.weights import ModelWeights, PackedMatrix
from server.kernels.dispatch import Isa
from server.kernels.records import STEP, AttentionOperands, MatmulOperands, NormOperands, RopeOperands
from server.models.ops import Attention, HeadNorm, Norm, Rope, Vector
from server.models.spec import ModelSpec
from server.placement.cache_layout import kv_head_bytes
from server.placement.shard import ShardSpec

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


@dataclass(frozen=True, slots=True)
class Branch:
    """Partial sums that the next norm puts on the residual stream; none after the embedding."""

    num_partials: int = 0
    bias: int = 0  # address, 0 = none
    norm: int = 0  # address of the weights of the norm of it, 0 = none


@dataclass(frozen=True, slots=True)
class HeadOps:
    """The ops around attention, which are one with it."""

    norm: HeadNorm | None
    rope: Rope | None
    attention: Attention


def float_bits(value: float) -> int:
    """The bits of a float32: how operands, which are int64 words, hold real numbers."""
    return int(np.float32(value).view(np.uint32))


def address_of(buffer: Buffer | None) -> int:
    return 0 if buffer is None else buffer.address


def addresses_of(shards: Sequence[Buffer]) -> list[int]:
    return [shard.address for shard in shards]


class Operands:
    """The records of the ops of one model."""

    def __init__(self, placement: Placement) -> None:
        self._at = placement
        self._spec, self._shard, self._buffers = placement.spec, placement.shard, placement.buffers
        self._kv_head_bytes = kv_head_bytes(placement.spec, placement.kv_dtype, placement.cache.block_size)
        self._num_cores = len(placement.cores)

    def norm(self, op: Norm, branch: Branch) -> NormOperands:
        """The norm of the residual stream after `branch` is on it."""
        buffers = self._buffers
        return NormOperands(
            hidden=buffers.hidden.address,
            partials=buffers.partials.address,
            num_partials=branch.num_partials,
            partial_stride=buffers.sizes.partial,
            bias=branch.bias,
            post_weight=branch.norm,
            weight=self.vector(op.weight),
            panels=buffers.normed.address,
            row_scales=buffers.normed_scales.address,
            scratch=buffers.worker_scratch.address,
            width=buffers.widths.hidden,
            size=self._spec.hidden_size,
            eps=float_bits(op.eps),
            rows_field=STEP.num_tokens,
            index_field=0,
        )

    def vector(self, vector: Vector) -> int:
        """Address of a norm's weights."""
        return self._at.weights.vector(vector).address

    def matmul(self, matrix: PackedMatrix, inputs: Inputs, outputs: Sequence[int], ldc: int) -> list[MatmulOperands]:
        """Operands of a product with one shard on each core."""
        buffers = self._buffers
        return [
            MatmulOperands(
                activations=panels,
                row_scales=row_scales,
                weights=shard.tiles.address,
                column_scales=address_of(shard.scales),
                column_sums=address_of(shard.sums),
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

    def normed(self) -> Inputs:
        """The normed panels, which every core reads."""
        return [(self._buffers.normed.address, self._buffers.normed_scales.address)] * self._num_cores

    def packed(self, panels: Sequence[Buffer]) -> Inputs:
        """Panels of each core's own."""
        return [(p.address, scales.address) for p, scales in zip(panels, self._buffers.row_scales, strict=True)]

    def rope(self, core: int, i: int, qkv: PackedMatrix, heads: HeadOps) -> RopeOperands:
        """Operands that rotate the outputs of `qkv` on `core` and write K and V of layer `i`."""
        norm = heads.norm
        table = self._at.tables.ropes[None if heads.rope is None else heads.rope.spec]
        return RopeOperands(
            qkv=self._buffers.qkv[core].address,
            ldc=self._buffers.widths.qkv,
            bias=qkv.biases[core].address if qkv.biases else 0,
            q_norm=0 if norm is None else self.vector(norm.query),
            k_norm=0 if norm is None else self.vector(norm.key),
            cos=table.cos.address,
            sin=table.sin.address,
            k_cache=self._at.kv.k(core, i),
            v_cache=self._at.kv.v(core, i),
            heads=self._shard.heads_per_core,
            kv_heads=self._shard.kv_heads_per_core,
            head_dim=self._spec.head_dim,
            head_pad=self._buffers.widths.head,
            block_size=self._at.cache.block_size,
            eps=float_bits(0.0 if norm is None else norm.eps),
            scale=float_bits(heads.attention.scale),
            queries=self._buffers.queries[core].address,
            queries_width=self._buffers.widths.attended,
            block_bytes=self._kv_head_bytes,
        )

    def attention(self, core: int, i: int, op: Attention) -> AttentionOperands:
        """The heads of `core` in layer `i`."""
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
            window=op.window,
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
