"""Between the qkv matmul and attention: bias, q/k norm, rotary embedding, and the write of K and V to their slots.

K is stored transposed within a block ([head_dim][block_size]), so that attention's lanes are tokens. For the tile unit
both lie in pairs (K [head_dim/2][block][2], V [block/2][head_dim][2]) and queries are bfloat16 rows. Elements, and the
scales of 8-bit ones, are those of cache_elements.py.
"""

from __future__ import annotations

import math
from typing import Any

from server.kernels.attention.cache_elements import BFLOAT16, FLOAT8, FLOAT32, INT8, CacheCell
from server.kernels.attention.items import COUNTER_BYTES
from server.kernels.isa import avx512, simd
from server.kernels.isa.jit import inline, kernel, share_begin
from server.kernels.isa.memory import load_f32, load_i32, load_i64, store_f32, store_i64
from server.kernels.records import ROPE, ROPE_BYTES, STEP


@inline
def _add_bias(row, bias, size):  # type: ignore[no-untyped-def]
    """row += bias, over `size` elements."""
    whole = size - size % 16
    for i in range(0, whole, 16):
        simd.store(row + i * 4, simd.add(simd.load(row + i * 4), simd.load(bias + i * 4)))
    for i in range(whole, size):
        store_f32(row + i * 4, load_f32(row + i * 4) + load_f32(bias + i * 4))


@inline
def _norm_head(head, weight, size, eps):  # type: ignore[no-untyped-def]
    """head = rmsnorm(head) * weight."""
    squares = 0.0
    for i in range(size):
        squares += load_f32(head + i * 4) * load_f32(head + i * 4)
    scale = 1.0 / math.sqrt(squares / size + eps)
    for i in range(size):
        store_f32(head + i * 4, load_f32(head + i * 4) * scale * load_f32(weight + i * 4))


@inline
def _rotate(head, cos, sin, half, scale):  # type: ignore[no-untyped-def]
    """Pairs (i, i + half) turned by their angle, times `scale`."""
    whole = half - half % 16
    by = simd.splat(scale)
    for i in range(0, whole, 16):
        low, high = simd.load(head + i * 4), simd.load(head + (half + i) * 4)
        c, s = simd.mul(simd.load(cos + i * 4), by), simd.mul(simd.load(sin + i * 4), by)
        simd.store(head + i * 4, simd.sub(simd.mul(low, c), simd.mul(high, s)))
        simd.store(head + (half + i) * 4, simd.add(simd.mul(high, c), simd.mul(low, s)))
    for i in range(whole, half):
        low1, high1 = load_f32(head + i * 4), load_f32(head + (half + i) * 4)
        c1, s1 = load_f32(cos + i * 4) * scale, load_f32(sin + i * 4) * scale
        store_f32(head + i * 4, low1 * c1 - high1 * s1)
        store_f32(head + (half + i) * 4, high1 * c1 + low1 * s1)


@inline
def _prepare_head(op, head, norm, position, scale):  # type: ignore[no-untyped-def]
    """Norm where the model has one, then rotation."""
    size = load_i64(op + ROPE.head_dim)
    if norm != 0:
        _norm_head(head, norm, size, load_f32(op + ROPE.eps))
    at = position * (size // 2) * 4
    _rotate(head, load_i64(op + ROPE.cos) + at, load_i64(op + ROPE.sin) + at, size // 2, scale)


def _writer(cell: CacheCell, is_paired: bool) -> Any:
    encode_key, encode_value, size, is_scaled = cell.encode_key, cell.encode_value, cell.size, cell.is_scaled
    copy_one, copy_two = cell.copy_one, cell.copy_two

    @inline
    def write_head(op, k, v, k_to, v_to, offset):  # type: ignore[no-untyped-def]
        """One head of one token into its block."""
        block_size, head_dim = load_i64(op + ROPE.block_size), load_i64(op + ROPE.head_dim)
        head_pad = load_i64(op + ROPE.head_pad)
        k_scale, v_scale = encode_key(k, head_dim), encode_value(v, head_dim)
        if is_paired:
            v_at = v_to + (offset // 2 * head_dim * 2 + offset % 2) * size
            for d in range(head_dim // 2):
                copy_two(k + d * 2 * size, k_to + (d * block_size + offset) * 2 * size)
            for d in range(head_dim):
                copy_one(v + d * size, v_at + d * 2 * size)
        else:
            for d in range(head_dim):
                copy_one(k + d * size, k_to + (d * block_size + offset) * size)
                copy_one(v + d * size, v_to + (offset * head_pad + d) * size)
        if is_scaled:
            at = head_pad * block_size * size + offset * 4
            store_f32(k_to + at, k_scale)
            store_f32(v_to + at, v_scale)

    @inline
    def write_kv(op, k, v, slot):  # type: ignore[no-untyped-def]
        """One token's k and v heads to its slot."""
        block_size, kv_heads = load_i64(op + ROPE.block_size), load_i64(op + ROPE.kv_heads)
        block_bytes, head_bytes = load_i64(op + ROPE.block_bytes), load_i64(op + ROPE.head_dim) * 4
        k_cache, v_cache = load_i64(op + ROPE.k_cache), load_i64(op + ROPE.v_cache)
        for j in range(kv_heads):
            at = (slot // block_size * kv_heads + j) * block_bytes
            write_head(op, k + j * head_bytes, v + j * head_bytes, k_cache + at, v_cache + at, slot % block_size)

    return write_kv


@inline
def _keep_queries(op, row, t):  # type: ignore[no-untyped-def]
    """Queries stay where the matmul left them."""


@inline
def _round_queries(op, row, t):  # type: ignore[no-untyped-def]
    """Queries to bfloat16 rows. The tile unit takes heads of a multiple of 32."""
    width = load_i64(op + ROPE.queries_width)
    to = load_i64(op + ROPE.queries) + t * width * 2
    for i in range(0, load_i64(op + ROPE.heads) * load_i64(op + ROPE.head_dim), 32):
        avx512.store_bf16_pair(to + i * 2, simd.load(row + i * 4), simd.load(row + i * 4 + 64))


def _rope(write_kv: Any, queries: Any) -> Any:
    @inline
    def one_token(op, row, t, position, slot):  # type: ignore[no-untyped-def]
        heads, kv_heads = load_i64(op + ROPE.heads), load_i64(op + ROPE.kv_heads)
        head_bytes = load_i64(op + ROPE.head_dim) * 4
        bias = load_i64(op + ROPE.bias)
        if bias != 0:
            _add_bias(row, bias, (heads + 2 * kv_heads) * load_i64(op + ROPE.head_dim))
        for h in range(heads):
            _prepare_head(op, row + h * head_bytes, load_i64(op + ROPE.q_norm), position, load_f32(op + ROPE.scale))
        k = row + heads * head_bytes
        for j in range(kv_heads):
            _prepare_head(op, k + j * head_bytes, load_i64(op + ROPE.k_norm), position, 1.0)
        write_kv(op, k, k + kv_heads * head_bytes, slot)
        queries(op, row, t)

    @inline
    def rope(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        # Attention, next, counts what is taken from this worker's share.
        store_i64(load_i64(step + STEP.counters) + worker * COUNTER_BYTES, 0)
        tokens = load_i64(step + STEP.num_tokens)
        positions, slots = load_i64(step + STEP.positions), load_i64(step + STEP.slots)
        first, last = share_begin(cores * tokens, worker, workers), share_begin(cores * tokens, worker + 1, workers)
        for item in range(first, last):
            t = item % tokens
            op = operands + item // tokens * ROPE_BYTES
            row = load_i64(op + ROPE.qkv) + t * load_i64(op + ROPE.ldc) * 4
            one_token(op, row, t, load_i32(positions + t * 4), load_i32(slots + t * 4))

    return rope


_bf16, _f32 = (_rope(_writer(cell, False), _keep_queries) for cell in (BFLOAT16, FLOAT32))
_i8, _e4m3 = (_rope(_writer(cell, False), _keep_queries) for cell in (INT8, FLOAT8))
_bf16_pairs, _i8_pairs, _e4m3_pairs = (_rope(_writer(cell, True), _round_queries) for cell in (BFLOAT16, INT8, FLOAT8))


@kernel
def rope_kv_bf16(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into a bfloat16 KV cache. Items are tokens of every core."""
    _bf16(operands, cores, step, worker, workers)


@kernel
def rope_kv_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into a float32 KV cache. Items are tokens of every core."""
    _f32(operands, cores, step, worker, workers)


@kernel
def rope_kv_i8(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into an int8 KV cache. Items are tokens of every core."""
    _i8(operands, cores, step, worker, workers)


@kernel
def rope_kv_e4m3(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into a float8 KV cache. Items are tokens of every core."""
    _e4m3(operands, cores, step, worker, workers)


@kernel
def rope_kv_pairs(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into a bfloat16 KV cache in pairs, queries to bfloat16. Items are tokens of every core."""
    _bf16_pairs(operands, cores, step, worker, workers)


@kernel
def rope_kv_i8_pairs(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into an int8 KV cache in pairs, queries to bfloat16. Items are tokens of every core."""
    _i8_pairs(operands, cores, step, worker, workers)


@kernel
def rope_kv_e4m3_pairs(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into a float8 KV cache in pairs, queries to bfloat16. Items are tokens of every core."""
    _e4m3_pairs(operands, cores, step, worker, workers)
