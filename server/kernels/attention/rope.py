"""Instructions between the qkv matmul and attention: q/k norm, rotary embedding, and the write of K and V to slots.

K is stored transposed within a block ([head_dim][block_size]), so that attention's lanes are tokens. For the tile unit,
and for integer products, both lie in pairs (K [head_dim/2][block][2], V [block/2][head_pad][2]); the tile unit's
queries are bfloat16 rows. cache_elements.py defines the elements and the scales of 8-bit ones. Norms over all heads
together need the sums of squares of every core, which `head_squares` computes before: the collective of such models.
"""

from __future__ import annotations

import math
from typing import Any

from ..isa import avx512, simd
from ..isa.jit import inline, kernel, made_kernel, share_begin
from ..isa.memory import load_f32, load_i32, load_i64, store_f32, store_i64
from ..records import ROPE, ROPE_BYTES, STEP
from .cache_elements import BFLOAT16, FLOAT8, FLOAT32, INT8, CacheCell
from .items import COUNTER_BYTES


@inline
def _sum_squares(values, size):  # type: ignore[no-untyped-def]
    """Return the sum of squares of `size` elements, added in order."""
    squares = 0.0
    for i in range(size):
        squares += load_f32(values + i * 4) * load_f32(values + i * 4)
    return squares


@inline
def _norm_head(head, weight, size, mean, eps):  # type: ignore[no-untyped-def]
    """Set head = head / sqrt(mean + eps) * weight."""
    scale = 1.0 / math.sqrt(mean + eps)
    for i in range(size):
        store_f32(head + i * 4, load_f32(head + i * 4) * scale * load_f32(weight + i * 4))


@inline
def _layer_norm_head(head, weight, shift, size, eps):  # type: ignore[no-untyped-def]
    """Set head = (head - mean) / standard deviation * weight, plus `shift` unless that is 0."""
    total = squares = 0.0
    for i in range(size):
        total += load_f32(head + i * 4)
    middle = total / size
    for i in range(size):
        distance = load_f32(head + i * 4) - middle
        store_f32(head + i * 4, distance)
        squares += distance * distance
    _norm_head(head, weight, size, squares / size, eps)
    if shift != 0:
        for i in range(size):
            store_f32(head + i * 4, load_f32(head + i * 4) + load_f32(shift + i * 4))


@inline
def rotate_neighbours(head, cos, sin, half, scale):  # type: ignore[no-untyped-def]
    """Rotate pairs (2 i, 2 i + 1) by their angle, times `scale`."""
    for i in range(half):
        first, second = load_f32(head + i * 8), load_f32(head + i * 8 + 4)
        c, s = load_f32(cos + i * 4) * scale, load_f32(sin + i * 4) * scale
        store_f32(head + i * 8, first * c - second * s)
        store_f32(head + i * 8 + 4, second * c + first * s)


@inline
def rotate(head, cos, sin, half, scale):  # type: ignore[no-untyped-def]
    """Rotate pairs (i, i + half) by their angle, times `scale`."""
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
def _norm_one(op, head, norm, shift, mean, size):  # type: ignore[no-untyped-def]
    """Norm a head if the model has q/k norms. A `mean` below 0: the head's own."""
    if norm != 0 and load_i64(op + ROPE.is_centered) != 0:
        _layer_norm_head(head, norm, shift, size, load_f32(op + ROPE.eps))
    elif norm != 0:
        if mean < 0.0:
            mean = _sum_squares(head, size) / size
        _norm_head(head, norm, size, mean, load_f32(op + ROPE.eps))


@inline
def _prepare_head(op, head, norm, shift, mean, turn, scale):  # type: ignore[no-untyped-def]
    """Rotate the first elements of a head, and norm all of it before, or after."""
    size, rotary, norms_last = load_i64(op + ROPE.head_dim), load_i64(op + ROPE.rotary), False
    if load_i64(op + ROPE.norms_rotated) != 0:
        norms_last = True
    else:
        _norm_one(op, head, norm, shift, mean, size)
    at = turn * (rotary // 2) * 4
    cos, sin = load_i64(op + ROPE.cos) + at, load_i64(op + ROPE.sin) + at
    by = scale
    if norms_last:
        by = 1.0
    if load_i64(op + ROPE.is_interleaved) != 0:
        if load_i64(op + ROPE.is_interleaved) == 1:
            rotate_neighbours(head, cos, sin, rotary // 2, by)
        else:
            quarter = rotary // 4
            rotate(head, cos, sin, quarter, by)
            rotate(head + rotary * 2, cos + quarter * 4, sin + quarter * 4, quarter, by)
    else:
        rotate(head, cos, sin, rotary // 2, by)
    if norms_last:
        _norm_one(op, head, norm, shift, mean, size)
        rotary = 0
    if scale != 1.0:
        for i in range(rotary, size):
            store_f32(head + i * 4, load_f32(head + i * 4) * scale)


@inline
def _prepare_heads(op, heads, count, norm, shift, mean, turn, scale):  # type: ignore[no-untyped-def]
    """Prepare neighbouring heads, which share their norm's weights or have their own."""
    head_bytes, stride = load_i64(op + ROPE.head_dim) * 4, load_i64(op + ROPE.norm_stride)
    for h in range(count):
        _prepare_head(op, heads + h * head_bytes, norm + h * stride, shift, mean, turn, scale)


@inline
def _norm_values(op, heads, count):  # type: ignore[no-untyped-def]
    """Norm value heads if the layer has a norm of values."""
    size, norm = load_i64(op + ROPE.head_dim), load_i64(op + ROPE.v_norm)
    if norm != 0:
        for head in range(heads, heads + count * size * 4, size * 4):
            _norm_head(head, norm, size, _sum_squares(head, size) / size, load_f32(op + ROPE.eps))


@inline
def _mean_square(op, cores, t, which, total):  # type: ignore[no-untyped-def]
    """Return the mean square of q (0) or k (1) of token `t`, summed in core order; below 0 if each head has its own."""
    sums = load_i64(op + ROPE.squares)
    if sums == 0:
        return -1.0
    squares = 0.0
    for core in range(cores):
        squares += load_f32(sums + ((t * cores + core) * 2 + which) * 4)
    return squares / total


def _writer(cell: CacheCell, is_paired: bool) -> Any:
    encode_key, encode_value, size, is_scaled = cell.encode_key, cell.encode_value, cell.size, cell.is_scaled
    copy_one, copy_two = cell.copy_one, cell.copy_two

    @inline
    def write_head(op, k, v, k_to, v_to, offset):  # type: ignore[no-untyped-def]
        """Write one head of one token to its block."""
        block_size, head_dim = load_i64(op + ROPE.block_size), load_i64(op + ROPE.head_dim)
        head_pad = load_i64(op + ROPE.head_pad)
        k_scale, v_scale = encode_key(k, head_dim), encode_value(v, head_dim)
        if is_paired:
            v_at = v_to + (offset // 2 * head_pad * 2 + offset % 2) * size
            for d in range((head_dim + 1) // 2):  # a byte follows an odd head; the query has a zero for it
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
        """Write one token's k and v heads to its slot."""
        block_size, kv_heads = load_i64(op + ROPE.block_size), load_i64(op + ROPE.kv_heads)
        block_bytes, head_bytes = load_i64(op + ROPE.block_bytes), load_i64(op + ROPE.head_dim) * 4
        k_cache, v_cache = load_i64(op + ROPE.k_cache), load_i64(op + ROPE.v_cache)
        for j in range(kv_heads):
            at = slot // block_size * load_i64(op + ROPE.block_stride) + j * block_bytes
            write_head(op, k + j * head_bytes, v + j * head_bytes, k_cache + at, v_cache + at, slot % block_size)

    return write_kv


@inline
def _keep_queries(op, row, t):  # type: ignore[no-untyped-def]
    """Do nothing: queries stay where the matmul left them."""


@inline
def _round_queries(op, row, t):  # type: ignore[no-untyped-def]
    """Round queries to bfloat16 rows. The tile unit takes heads of a multiple of 32."""
    width = load_i64(op + ROPE.queries_width)
    to = load_i64(op + ROPE.queries) + t * width * 2
    for i in range(0, load_i64(op + ROPE.heads) * load_i64(op + ROPE.head_dim), 32):
        avx512.store_bf16_pair(to + i * 2, simd.load(row + i * 4), simd.load(row + i * 4 + 64))


def _rope(write_kv: Any, queries: Any) -> Any:
    """Return a kernel's loop over the tokens of every core."""

    @inline
    def one_token(op, cores, row, t, position, turn, slot):  # type: ignore[no-untyped-def]
        heads, kv_heads = load_i64(op + ROPE.heads), load_i64(op + ROPE.kv_heads)
        head_bytes = load_i64(op + ROPE.head_dim) * 4
        k = row + heads * head_bytes
        mean = _mean_square(op, cores, t, 0, load_i64(op + ROPE.q_total))
        scale, temperatures = load_f32(op + ROPE.scale), load_i64(op + ROPE.temperatures)
        if temperatures != 0:
            scale *= load_f32(temperatures + position * 4)
        norm, shift = load_i64(op + ROPE.q_norm), load_i64(op + ROPE.q_shift)
        _prepare_heads(op, row, heads, norm, shift, mean, turn, scale)
        mean = _mean_square(op, cores, t, 1, load_i64(op + ROPE.k_total))
        norm, shift = load_i64(op + ROPE.k_norm), load_i64(op + ROPE.k_shift)
        _prepare_heads(op, k, kv_heads, norm, shift, mean, turn, 1.0)
        _norm_values(op, k + kv_heads * head_bytes, kv_heads)
        write_kv(op, k, k + kv_heads * head_bytes, slot)
        queries(op, row, t)

    @inline
    def rope(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        # Attention, the next instruction, counts the items taken from this worker's share.
        store_i64(load_i64(step + STEP.counters) + worker * COUNTER_BYTES, 0)
        tokens = load_i64(step + STEP.num_tokens)
        group = load_i64(operands + ROPE.kv_group)  # the same on every core
        positions, turns = load_i64(step + STEP.positions), load_i64(step + STEP.rope_rows)
        slots = load_i64(step + STEP.slots) + group * load_i64(step + STEP.slots_stride)
        first, last = share_begin(cores * tokens, worker, workers), share_begin(cores * tokens, worker + 1, workers)
        for item in range(first, last):
            t = item % tokens
            op = operands + item // tokens * ROPE_BYTES
            row = load_i64(op + ROPE.qkv) + t * load_i64(op + ROPE.ldc) * 4
            position, turn = load_i32(positions + t * 4), load_i32(turns + t * 4)
            one_token(op, cores, row, t, position, turn, load_i32(slots + t * 4))

    return rope


@kernel
def head_squares(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Sum the squares of each core's q, and of the k that no earlier core has. Items are tokens of every core."""
    tokens = load_i64(step + STEP.num_tokens)
    for item in range(share_begin(cores * tokens, worker, workers), share_begin(cores * tokens, worker + 1, workers)):
        t, core = item % tokens, item // tokens
        op = operands + core * ROPE_BYTES
        row = load_i64(op + ROPE.qkv) + t * load_i64(op + ROPE.ldc) * 4
        heads, kv_heads, head_dim = (
            load_i64(op + ROPE.heads),
            load_i64(op + ROPE.kv_heads),
            load_i64(op + ROPE.head_dim),
        )
        own = load_i64(op + ROPE.own_kv)
        to = load_i64(op + ROPE.squares) + (t * cores + core) * 8
        store_f32(to, _sum_squares(row, heads * head_dim))
        store_f32(to + 4, _sum_squares(row + (heads + own) * head_dim * 4, (kv_heads - own) * head_dim))


rope_kv_bf16 = made_kernel("rope_kv_bf16", _rope(_writer(BFLOAT16, False), _keep_queries))
rope_kv_f32 = made_kernel("rope_kv_f32", _rope(_writer(FLOAT32, False), _keep_queries))
rope_kv_i8 = made_kernel("rope_kv_i8", _rope(_writer(INT8, False), _keep_queries))
rope_kv_i8_lane_pairs = made_kernel("rope_kv_i8_lane_pairs", _rope(_writer(INT8, True), _keep_queries))
rope_kv_e4m3_lane_pairs = made_kernel("rope_kv_e4m3_lane_pairs", _rope(_writer(FLOAT8, True), _keep_queries))
rope_kv_e4m3 = made_kernel("rope_kv_e4m3", _rope(_writer(FLOAT8, False), _keep_queries))
# For the tile unit, which reads queries as bfloat16.
rope_kv_pairs = made_kernel("rope_kv_pairs", _rope(_writer(BFLOAT16, True), _round_queries))
rope_kv_i8_pairs = made_kernel("rope_kv_i8_pairs", _rope(_writer(INT8, True), _round_queries))
rope_kv_e4m3_pairs = made_kernel("rope_kv_e4m3_pairs", _rope(_writer(FLOAT8, True), _round_queries))
