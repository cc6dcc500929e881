"""Operands of the kernels around attention: rotation of heads, writing to the cache, attention itself."""

from __future__ import annotations

from ..device.layout import FLOAT32_BYTES
from ..kernels.records import AttentionOperands, BothSidesOperands, RopeOperands
from ..kernels.state.records import GatedNormOperands
from ..models.layer import AttentionSpec
from ..models.ops import Attention, HeadNorm, PlainHeadNorm
from ..placement.cache_layout import kv_head_bytes, kv_tensor_bytes
from ..placement.matrices import AttentionWidths
from .operands import HeadOps, Operands, address_of, float_bits


class HeadOperands:
    """Maker of the records of one model's attention."""

    def __init__(self, operands: Operands) -> None:
        self._at, self._vector = operands.placement, operands.vector
        self._spec, self._shard, self._buffers = self._at.spec, self._at.shard, self._at.buffers

    def rope(self, core: int, i: int, heads: HeadOps) -> RopeOperands:
        """Operands that rotate q and k on `core` and write K and V of layer `i`."""
        norm, temperature, mixer = heads.norm, heads.attention.temperature, self._mixer(i)
        table = self._at.tables.ropes[None if heads.rope is None else heads.rope.spec, mixer.head_dim]
        widths, shard = AttentionWidths.of(mixer, self._shard), self._shard.of_heads(mixer.heads)
        own = mixer.kv_source is None
        return RopeOperands(
            qkv=self._buffers.qkv[core].address,
            ldc=widths.qkv,
            **self._head_norm(heads.norm, core, mixer.head_dim),
            q_total=mixer.num_heads * mixer.head_dim,
            k_total=mixer.num_kv_heads * mixer.head_dim,
            cos=table.cos.address,
            sin=table.sin.address,
            rotary=table.rotary_dim,
            is_interleaved=0 if heads.rope is None else heads.rope.spec.is_interleaved + 2 * heads.rope.spec.is_halved,
            heads=shard.heads_per_core,
            head_dim=mixer.head_dim,
            head_pad=widths.head,
            block_size=self._at.cache.block_size,
            eps=float_bits(self._spec.stack.norm.eps if norm is None else norm.eps),
            scale=float_bits(heads.attention.scale),
            temperatures=0 if temperature is None else self._at.tables.temperatures[temperature].address,
            own_kv=shard.first_own_kv_slot(core),
            v_norm=address_of(self._at.tables.ones[mixer.head_dim]) if mixer.has_value_norm else 0,
            queries=self._buffers.queries[core].address,
            queries_width=widths.attended,
            kv_group=self._at.kv.group(i),
            **self._cache(core, i) | {"kv_heads": shard.kv_heads_per_core * own},
        )

    def _mixer(self, i: int) -> AttentionSpec:
        mixer = self._spec.layers[i].mixer
        assert isinstance(mixer, AttentionSpec)
        return mixer

    def _cache(self, core: int, i: int) -> dict[str, int]:
        """Fields that say where the keys and values of layer `i` are."""
        mixer, kv, block_size = self._mixer(i), self._at.kv, self._at.cache.block_size
        part = kv_tensor_bytes(mixer, self._shard, self._at.kv_dtype, block_size)
        return {
            "k_cache": kv.k(core, i, part),
            "v_cache": kv.v(core, i, part),
            "kv_heads": self._shard.of_heads(mixer.heads).kv_heads_per_core,
            "block_bytes": kv_head_bytes(mixer.head_dim, self._at.kv_dtype, block_size),
            "block_stride": kv.block_stride,
        }

    def _head_norm(self, norm: HeadNorm | PlainHeadNorm | None, core: int, head_dim: int) -> dict[str, int]:
        """Fields that describe the norm of heads."""
        fields = dict.fromkeys(("q_norm", "k_norm", "norm_stride", "is_centered", "norms_rotated", "squares"), 0)
        if isinstance(norm, PlainHeadNorm):
            fields["q_norm"] = fields["k_norm"] = address_of(self._at.tables.ones[head_dim])
        elif norm is not None:
            fields["q_norm"], fields["k_norm"] = self._vector(norm.query, core), self._vector(norm.key, core)
            fields["norm_stride"] = 0 if norm.query.axis is None else head_dim * FLOAT32_BYTES
            fields["is_centered"], fields["norms_rotated"] = int(norm.is_centered), int(norm.follows_rope)
            if norm.biases:
                fields["q_shift"], fields["k_shift"] = (self._vector(each, core) for each in norm.biases)
            fields["squares"] = self._buffers.head_squares.address if norm.is_wide else 0
        return fields

    def _bias(self, core: int) -> dict[str, int]:
        """Fields that describe the bias of scores by distance."""
        found = self._at.distances
        if found is None:
            return {"bias": 0, "bias_stride": 0, "bias_middle": 0}
        address = found.shards[core].address if found.shards else 0
        return {"bias": address, "bias_stride": found.stride, "bias_middle": found.middle}

    def gate(self, core: int, i: int) -> GatedNormOperands:
        """Operands that multiply the output of layer `i` by the sigmoid of the gate behind queries, keys and values."""
        mixer, buffers = self._mixer(i), self._buffers
        widths, heads = AttentionWidths.of(mixer, self._shard), self._shard.of_heads(mixer.heads)
        before = (heads.heads_per_core + 2 * heads.kv_heads_per_core) * mixer.head_dim
        return GatedNormOperands(
            source=buffers.attended[core].address,
            source_ldc=widths.attended,
            gates=buffers.qkv[core].address + before * FLOAT32_BYTES,
            gates_ldc=widths.qkv,
            weight=0,
            weight_stride=0,
            groups=heads.heads_per_core,
            max_groups=heads.heads_per_core,
            columns=mixer.head_dim,
            size=mixer.head_dim,
            group_cores=1,
            is_gate_first=0,
            eps=0,
            output=buffers.attended[core].address,
            output_ldc=widths.attended,
            has_sigmoid=1,
        )

    def both_sides(self, core: int, i: int, op: Attention) -> BothSidesOperands:
        """Operands of attention over whole texts, for the heads of `core` in layer `i`."""
        sizes, buffers, mixer, found = self._buffers.sizes, self._buffers, self._mixer(i), self._at.distances
        widths, rows = AttentionWidths.of(mixer, self._shard), found.rows[i] if found and found.rows else ()
        return BothSidesOperands(
            qkv=buffers.qkv[core].address,
            ldc=widths.qkv,
            output=buffers.attended[core].address,
            output_width=widths.attended,
            head_dim=mixer.head_dim,
            head_pad=widths.head,
            block_size=self._at.cache.block_size,
            **self._cache(core, i),
            reach=op.window // 2,  # on either side
            groups=self._at.tables.groups[mixer.heads][core].address,
            scratch=buffers.worker_scratch.address,
            scratch_stride=sizes.worker_scratch,
            tile_tokens=sizes.attention.tile_tokens,
            state_rows=sizes.attention.state_rows,
            **self._bias(core),
            distance_keys=rows[0][core].address if rows else 0,
            distance_queries=rows[1][core].address if rows else 0,
        )

    def attention(self, core: int, i: int, op: Attention) -> AttentionOperands:
        """Operands of attention for the heads of `core` in layer `i`."""
        sizes, mixer = self._buffers.sizes.attention, self._mixer(i)
        widths = AttentionWidths.of(mixer, self._shard)
        return AttentionOperands(
            qkv=self._buffers.qkv[core].address,
            ldc=widths.qkv,
            output=self._buffers.attended[core].address,
            output_width=widths.attended,
            head_dim=mixer.head_dim,
            head_pad=widths.head,
            block_size=self._at.cache.block_size,
            **self._cache(core, i),
            window=-op.window if op.is_chunked else op.window,
            cap=float_bits(op.cap),
            sinks=0 if op.sinks is None else self._vector(op.sinks, core),
            slopes=self._at.tables.slopes[mixer.slopes, mixer.heads][core].address if mixer.slopes else 0,
            groups=self._at.tables.groups[mixer.heads][core].address,
            scratch=self._buffers.worker_scratch.address,
            scratch_stride=self._buffers.sizes.worker_scratch,
            tile_tokens=sizes.tile_tokens,
            queries=self._buffers.queries[core].address,
            queries_width=widths.attended,
            state_rows=sizes.state_rows,
            max_group=sizes.max_group,
            partials=self._buffers.partial_states.address,
            arrivals=self._buffers.arrivals.address,
            kv_group=self._at.kv.group(i),
            sees_ahead=int(self._spec.vision is not None and self._spec.vision.sees_ahead(op.window)),
            **self._bias(core),
        )
