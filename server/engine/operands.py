"""Operands of kernels, made from the addresses of a placed model: one record for each core of an instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ..config import CacheConfig
from ..config.formats import Dtype, Isa, KVCacheDtype
from ..device.core import NeuronCore
from ..device.hbm import Buffer
from ..device.layout import K_TILES, N_TILE, group_shift
from ..kernels.records import (
    STEP,
    AddRowsOperands,
    EmbedOperands,
    MatmulOperands,
    NormOperands,
    PackOperands,
)
from ..kernels.sample.records import LogitsOperands
from ..models.linear import Vector
from ..models.ops import (
    AddRows,
    Attention,
    Embed,
    FinishLogits,
    HeadNorm,
    LayerNorm,
    Norm,
    PlainHeadNorm,
    Rope,
)
from ..models.spec import ModelSpec
from ..placement.shard import ShardSpec
from .buffers import ActivationBuffers, ConstantTables, KVPool
from .load.weights import ModelWeights, PackedMatrix

PanelAddresses = Sequence[tuple[int, int]]  # of panels (or rows) and of row scales, for each core


@dataclass(frozen=True, slots=True)
class DistanceBias:
    """Terms that the distance of two tokens adds to their score: float32 [heads, stride] of each core's heads.

    `rows` has for each layer the keys and queries of distances, on each core, as in BothSidesOperands.
    """

    shards: tuple[Buffer, ...]
    stride: int
    middle: int  # column of distance 0
    rows: tuple[tuple[tuple[Buffer, ...], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """A model on its cores: all memory that a program's operands point to."""

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
    distances: DistanceBias | None = None  # None: scores have no bias by distance


@dataclass(frozen=True, slots=True)
class Branch:
    """Partial sums that the next norm adds to the residual stream; none after the embedding."""

    num_partials: int = 0
    norm: int = 0  # address of the weights of the sum's own norm, 0 = none
    scale: float = 1.0
    factor: int = 0  # address of a number that the sum is multiplied with, 0 = `constant`
    constant: float = 1.0


@dataclass(frozen=True, slots=True)
class HeadOps:
    """The ops before attention that its kernels include."""

    norm: HeadNorm | PlainHeadNorm | None
    rope: Rope | None
    attention: Attention


@dataclass(frozen=True, slots=True)
class Leaves:
    """Values that a column-parallel op leaves on each core for a row-parallel layer to read."""

    values: Sequence[Buffer] = ()
    panels: Sequence[Buffer] = ()  # memory for their packed form
    is_packed: bool = False  # the values are bfloat16 panels already


def float_bits(value: float) -> int:
    """Return the bits of a float32: operands are int64 words and hold real numbers this way."""
    return int(np.float32(value).view(np.uint32))


def address_of(buffer: Buffer | None) -> int:
    return 0 if buffer is None else buffer.address


def addresses_of(shards: Sequence[Buffer]) -> list[int]:
    return [shard.address for shard in shards]


class Operands:
    """Maker of the records of one model's ops."""

    def __init__(self, placement: Placement) -> None:
        self.placement = self._at = placement
        self._spec, self._shard, self._buffers = placement.spec, placement.shard, placement.buffers
        self._num_cores = len(placement.cores)

    def pack(self, source: int, into: tuple[int, int], width: int) -> PackOperands:
        """Operands that pack rows or panels at `source` into the panels and row scales at `into`."""
        scratch, stride = self._buffers.worker_scratch.address, self._buffers.sizes.worker_scratch
        return PackOperands(source, *into, width, scratch=scratch, scratch_stride=stride)

    def norm(self, op: Norm | LayerNorm | None, branch: Branch) -> NormOperands:
        """Operands that add `branch` to the residual stream and norm the result, or pack it as it is."""
        buffers, is_length = self._buffers, isinstance(op, Norm) and op.is_length
        size = self._spec.hidden_size if op is None or op.weight is None else op.weight.size
        return NormOperands(
            hidden=buffers.hidden.address,
            partials=buffers.partials.address,
            num_partials=branch.num_partials,
            partial_stride=buffers.sizes.partial,
            post_weight=branch.norm,
            branch_scale=float_bits(branch.scale),
            weight=0 if op is None else self.vector(op.weight),
            shift=self.vector(op.bias) if isinstance(op, LayerNorm) and op.bias is not None else 0,
            is_centered=int(isinstance(op, LayerNorm)),
            stays=0,
            panels=buffers.normed.address,
            row_scales=buffers.normed_scales.address,
            scratch=buffers.worker_scratch.address,
            scratch_stride=buffers.sizes.worker_scratch,
            width=buffers.widths.hidden,
            size=1 if is_length else size,
            eps=float_bits(self._spec.stack.norm.eps * (self._spec.hidden_size if is_length else 1)),
            rows_field=STEP.num_tokens,
            index_field=0,
            factor=branch.factor,
            constant=float_bits(branch.constant),
        )

    def embed(self, op: Embed, tiles: PackedMatrix | None) -> list[EmbedOperands]:
        """Operands of the embedding by rows of the table, or by `tiles` of an output layer.

        Its scale is rounded as the activations are, as in training.
        """
        hidden, per_core, width = self._buffers.hidden.address, self._shard.vocab_per_core, self._buffers.widths.hidden
        scale = float_bits(op.scale if self._at.dtype == "float32" else float(ml_dtypes.bfloat16(op.scale)))
        if tiles is None:
            rows = addresses_of(self._at.weights.embedding or ())
            return [EmbedOperands(table, 0, hidden, per_core, width, scale, 0, 0) for table in rows]
        shift = group_shift(tiles.weights, tiles.groups)
        parts = [(part.tiles.address, address_of(part.scales), address_of(part.sums)) for part in tiles.shards]
        return [
            EmbedOperands(table, scales, hidden, per_core, width, scale, shifts, shift)
            for table, scales, shifts in parts
        ]

    def add_rows(self, op: AddRows) -> AddRowsOperands:
        """Operands that add the rows of a table, chosen by positions or token types."""
        return AddRowsOperands(
            table=self._at.weights.tables[op.table.weight].address,
            hidden=self._buffers.hidden.address,
            width=self._buffers.widths.hidden,
            index_field={"positions": STEP.positions, "token_types": STEP.token_types, "tasks": 0}[op.by],
            first=op.first,
        )

    def vector(self, vector: Vector | None, core: int = 0) -> int:
        """Return the address of a norm's weights, or of `core`'s part of them; without a vector, of ones."""
        if vector is None:
            return self._at.tables.ones[self._spec.hidden_size].address
        return self._at.weights.vector(vector, core).address

    def matmul(
        self, matrix: PackedMatrix, inputs: PanelAddresses, outputs: Sequence[int], ldc: int
    ) -> list[MatmulOperands]:
        """Operands of a product with one shard on each core; a bias that all cores share is added on the first."""
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
                bias=matrix.biases[core].address if core < len(matrix.biases) else 0,
                group_shift=group_shift(matrix.weights, matrix.groups),
            )
            for core, ((panels, row_scales), shard, output) in enumerate(
                zip(inputs, matrix.shards, outputs, strict=True)
            )
        ]

    def normed(self) -> PanelAddresses:
        """Addresses of the normed panels, which every core reads."""
        return [(self._buffers.normed.address, self._buffers.normed_scales.address)] * self._num_cores

    def packed(self, panels: Sequence[Buffer]) -> PanelAddresses:
        """Addresses of panels that each core has for itself."""
        return [(p.address, scales.address) for p, scales in zip(panels, self._buffers.row_scales, strict=True)]

    def finish_logits(self, op: FinishLogits) -> LogitsOperands:
        """Operands over the logits of all cores, side by side."""
        logits, width = self._buffers.logits.address, self._buffers.logits_width
        return LogitsOperands(logits, width, float_bits(op.scale), float_bits(op.cap))
