"""Latent attention of a layer as instructions of a device program.

q_a, norm    the narrow queries, by one core for all, and their norm as panels; without them queries read the stream
q            each core its heads
kv_a         the latents, by one core for all
write        norm and rotation of the latents, and their rows to the slots of every core
queries      each head's query as a row of the cache
attention    each core its heads: weighted rows of the cache
values       each head's values of its weighted row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..kernels.dispatch import linear_kernels
from ..kernels.latent.attention import KERNELS as ATTENTIONS
from ..kernels.latent.heads import QUERIES, VALUES, WRITES
from ..kernels.latent.records import LatentOperands
from ..kernels.program import Program
from ..kernels.records import STEP, AttentionOperands, NormOperands
from ..models.layer import LatentAttentionSpec
from ..models.linear import Linear
from ..models.ops import LatentAttention
from ..placement.matrices import AttentionWidths, PackedShape
from .operands import Leaves, Operands, PanelAddresses, Placement, addresses_of, float_bits

Read = Callable[[str, Linear], PanelAddresses]  # (label, reader) -> panels of the normed stream


class LatentLowering:
    """Adds the instructions of one layer, which read the stream by `read`."""

    def __init__(self, placement: Placement, program: Program, read: Read) -> None:
        assert placement.buffers.latent is not None
        self._at, self._program, self._read = placement, program, read
        self._buffers, self._latent = placement.buffers, placement.buffers.latent
        self._operands, self._cores = Operands(placement), range(len(placement.cores))

    def add(self, i: int, op: LatentAttention) -> Leaves:
        """Add the attention of layer `i`; return where each core leaves the values of its heads."""
        label, at = f"layer {i}", self._at
        self._product(label, op.query, self._query_inputs(label, op), addresses_of(self._buffers.qkv))
        self._product(label, op.latent, self._read(label, op.latent), [self._latent.latents.address])
        heads = [self._heads(core, i, op) for core in self._cores]
        attention = [self._attention(core, i, op.spec) for core in self._cores]
        self._program.add(f"{label} latent write", WRITES[at.kv_dtype], heads)
        self._program.add(f"{label} latent queries", QUERIES[at.dtype], heads)
        self._program.add(f"{label} attention", ATTENTIONS[at.kv_dtype], attention)
        self._program.add(f"{label} latent values", VALUES[at.dtype], heads)
        return Leaves(self._buffers.attended, self._buffers.attended_panels, is_packed=False)

    def _query_inputs(self, label: str, op: LatentAttention) -> PanelAddresses:
        """Return the panels that the queries' projection reads."""
        if op.down is None:
            return self._read(label, op.query)
        assert op.query_norm is not None
        latent, scratch = self._latent, self._buffers.worker_scratch.address
        self._product(label, op.down, self._read(label, op.down), [latent.queries.address])
        matrix = self._at.weights.matrix(op.query)
        norm = NormOperands(
            hidden=latent.queries.address,
            partials=0,
            num_partials=0,
            partial_stride=0,
            post_weight=0,
            branch_scale=float_bits(1.0),
            weight=self._operands.vector(op.query_norm),
            shift=0,
            is_centered=0,
            stays=0,
            panels=latent.panels.address,
            row_scales=latent.row_scales.address,
            scratch=scratch,
            scratch_stride=self._buffers.sizes.worker_scratch,
            width=matrix.k,
            size=op.spec.query_rank,
            eps=float_bits(op.spec.eps),
            rows_field=STEP.num_tokens,
            index_field=0,
        )
        kernel = linear_kernels(matrix.weights, self._at.isa).reduce_norm
        self._program.add(f"{label} {op.query.name} norm", kernel, [norm])
        return [(latent.panels.address, latent.row_scales.address)] * len(self._cores)

    def _product(self, label: str, linear: Linear, inputs: PanelAddresses, outputs: Sequence[int]) -> None:
        """Add a product, by as many cores as there are outputs. Narrow queries are as wide as their reader's inputs."""
        matrix = self._at.weights.matrix(linear)
        width = self._latent.sizes.query_width if linear.name == "q_a" else matrix.n
        operands = self._operands.matmul(matrix, inputs, [*outputs] * (len(self._cores) // len(outputs)), width)
        kernel = linear_kernels(matrix.weights, self._at.isa).matmul
        self._program.add(f"{label} {linear.name}", kernel, operands[: len(outputs)])

    def _heads(self, core: int, i: int, op: LatentAttention) -> LatentOperands:
        spec, buffers, kv = op.spec, self._buffers, self._at.kv
        widths, table = AttentionWidths.of(spec, self._at.shard), self._at.tables.ropes[spec.rope, spec.rotary]
        return LatentOperands(
            latent=self._latent.latents.address,
            latent_width=self._at.weights.matrix(op.latent).n,
            norm=self._operands.vector(op.latent_norm),
            eps=float_bits(spec.eps),
            rank=spec.rank,
            rotary=table.rotary_dim,
            row_pad=widths.head,
            cos=table.cos.address,
            sin=table.sin.address,
            is_interleaved=int(spec.rope is not None and spec.rope.is_interleaved),
            cache=kv.k(core, i),
            block_size=self._at.cache.block_size,
            block_bytes=kv.block_stride,
            kv_group=kv.group(i),
            heads=self._at.shard.of_heads(spec.heads).heads_per_core,
            query=buffers.qkv[core].address,
            query_width=widths.qkv,
            size=spec.size,
            weights=self._at.weights.rows[op.heads.modules[0]][core].address,
            weight_width=PackedShape.of(op.heads, buffers.widths).k,
            scale=float_bits(spec.head_dim**-0.5 if spec.scale is None else spec.scale),
            rows=self._latent.rows[core].address,
            value_size=spec.value_size,
            values=buffers.attended[core].address,
            values_width=widths.attended,
        )

    def _attention(self, core: int, i: int, spec: LatentAttentionSpec) -> AttentionOperands:
        """Operands of attention, whose queries are rows of the cache and are replaced by the weighted rows."""
        buffers, sizes, kv = self._buffers, self._buffers.sizes, self._at.kv
        head_pad, rows = AttentionWidths.of(spec, self._at.shard).head, self._latent.rows[core].address
        width = self._at.shard.of_heads(spec.heads).heads_per_core * head_pad
        return AttentionOperands(
            qkv=rows,
            ldc=width,
            k_cache=kv.k(core, i),
            v_cache=kv.k(core, i),
            output=rows,
            output_width=width,
            kv_heads=1,
            head_dim=head_pad,
            head_pad=head_pad,
            block_size=self._at.cache.block_size,
            window=0,
            cap=0,
            sinks=0,
            slopes=0,
            groups=self._at.tables.groups[spec.heads][core].address,
            scratch=buffers.worker_scratch.address,
            scratch_stride=sizes.worker_scratch,
            tile_tokens=sizes.attention.tile_tokens,
            queries=0,
            queries_width=0,
            block_bytes=kv.block_stride,
            block_stride=kv.block_stride,
            state_rows=sizes.attention.state_rows,
            max_group=sizes.attention.max_group,
            partials=buffers.partial_states.address,
            arrivals=buffers.arrivals.address,
            kv_group=kv.group(i),
        )
