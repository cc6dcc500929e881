"""Paged attention on the tile unit: scores and weighted values of 32 rows at a time, with softmax on lanes between.

Items, causal limits and the order of keys are those of lanes.py; a row's result depends on the row alone. The cache
lies in pairs, as weights do (rope.py writes it): K [head_dim/2][block][2], V [block/2][head_dim][2]. V is finite, so
masked values, multiplied by zero, stay zero. 8-bit elements are converted to bfloat16 in the worker's scratch, a chunk
of keys at a time for all rows. Weights are rounded to bfloat16, so an exponential with a relative error of 8e-5 is
exact enough.
"""

from __future__ import annotations

from typing import Any

from ...device.attention_layout import (
    CHUNK,
    TILE_SCALES_BYTES,
    TILE_SCORES_BYTES,
    TILE_WEIGHTS_BYTES,
    VALUES,
)
from ..isa import amx, simd
from ..isa.avx512 import exp2, store_bf16_pair
from ..isa.jit import Kernel, inline, made_kernel
from ..isa.memory import load_f32, load_i32, load_i64
from ..records import ATTENTION
from . import cache_elements
from .items import ITEM, attention_items, end_key, slope_of
from .softmax import Weights, softmax
from .state import first_key, state_bytes

_SLICE = 32  # keys of one step: the k extent of a tile of weights, two tiles of K
_dot_0_4_6, _dot_1_4_7 = amx.dot_bf16(0, 4, 6), amx.dot_bf16(1, 4, 7)
_dot_2_5_6, _dot_3_5_7 = amx.dot_bf16(2, 5, 6), amx.dot_bf16(3, 5, 7)


@inline
def _queries(work):  # type: ignore[no-untyped-def]
    return work + TILE_SCORES_BYTES + TILE_WEIGHTS_BYTES + TILE_SCALES_BYTES


@inline
def _prepare(item):  # type: ignore[no-untyped-def]
    """Gather the queries, bfloat16 [rows][head_dim], padded to whole tiles with copies of the last row."""
    op, group, rows = load_i64(item + ITEM.op), load_i64(item + ITEM.group), load_i64(item + ITEM.rows)
    head_dim, width = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.queries_width)
    source = load_i64(op + ATTENTION.queries) + load_i64(item + ITEM.first_head) * head_dim * 2
    source += load_i64(item + ITEM.row) * width * 2
    to, token_bytes = _queries(load_i64(item + ITEM.work)), group * head_dim * 2
    for _ in range(load_i64(item + ITEM.tokens)):
        for i in range(0, token_bytes, 64):  # the heads of a token are neighbours
            simd.store(to + i, simd.load(source + i))  # copies bits
        to, source = to + token_bytes, source + width * 2
    for r in range(rows, (rows + 15) // 16 * 16):
        for i in range(0, head_dim * 2, 64):
            simd.store(to + (r - rows) * head_dim * 2 + i, simd.load(to - head_dim * 2 + i))


def _score_loop(has_two: bool) -> Any:
    """Return the scores of 16 rows, or of 32."""

    @inline
    def scores(q, s, k, k_stride, head_dim):  # type: ignore[no-untyped-def]
        """Compute s[rows, 32 keys] = q @ K."""
        amx.zero0()
        amx.zero1()
        if has_two:
            amx.zero2()
            amx.zero3()
        for d in range(0, head_dim, 32):
            amx.load4(q + d * 2, head_dim * 2)
            amx.load6(k + d // 2 * k_stride, k_stride)
            _dot_0_4_6()
            amx.load7(k + d // 2 * k_stride + 64, k_stride)
            _dot_1_4_7()
            if has_two:
                amx.load5(q + 16 * head_dim * 2 + d * 2, head_dim * 2)
                _dot_2_5_6()
                _dot_3_5_7()
        amx.store0(s, CHUNK * 4)
        amx.store1(s + 64, CHUNK * 4)
        if has_two:
            amx.store2(s + 16 * CHUNK * 4, CHUNK * 4)
            amx.store3(s + 16 * CHUNK * 4 + 64, CHUNK * 4)

    return scores


def _value_loop(has_two: bool) -> Any:
    """Return the weighted values of 16 rows, or of 32."""

    @inline
    def values(weights, v0, v1, slices, states, size, head_dim):  # type: ignore[no-untyped-def]
        """Add weights @ V of one slice of keys or two to the weighted values [rows, head_dim]."""
        lower, line = states + VALUES + 16 * size, head_dim * 4
        for d in range(0, head_dim, 32):
            at = d * 4
            amx.load0(states + VALUES + at, size)
            amx.load1(states + VALUES + at + 64, size)
            if has_two:
                amx.load2(lower + at, size)
                amx.load3(lower + at + 64, size)
            for i in range(slices):
                v = v0 + i * (v1 - v0) + at
                amx.load4(weights + i * 64, CHUNK * 2)
                amx.load6(v, line)
                _dot_0_4_6()
                amx.load7(v + 64, line)
                _dot_1_4_7()
                if has_two:
                    amx.load5(weights + 16 * CHUNK * 2 + i * 64, CHUNK * 2)
                    _dot_2_5_6()
                    _dot_3_5_7()
            amx.store0(states + VALUES + at, size)
            amx.store1(states + VALUES + at + 64, size)
            if has_two:
                amx.store2(lower + at, size)
                amx.store3(lower + at + 64, size)

    return values


@inline
def _store_bf16(at, a, b, c, d):  # type: ignore[no-untyped-def]
    store_bf16_pair(at, a, b)
    store_bf16_pair(at + 64, c, d)


_IN_BFLOAT16 = Weights(exp2, _store_bf16)


def _softmax_rows(is_scaled: bool) -> Any:
    softmax_row = softmax(_IN_BFLOAT16, is_scaled)

    @inline
    def rows_loop(item, first, base, states, s, weights, scales):  # type: ignore[no-untyped-def]
        """Compute the softmax of up to 32 rows from row `first` of the item on, for CHUNK keys from `base` on."""
        op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
        window, head_dim = load_i64(op + ATTENTION.window), load_i64(op + ATTENTION.head_dim)
        size, cap = state_bytes(head_dim), load_f32(op + ATTENTION.cap)
        position, token, head = load_i64(item + ITEM.position), first // group, first % group
        for r in range(min(32, load_i64(item + ITEM.rows) - first)):
            state, line, out = states + r * size, s + r * CHUNK * 4, weights + r * CHUNK * 2
            begin, end = first_key(position + token, window) - base, end_key(item, token) - base
            softmax_row(state, line, out, begin, end, scales, head_dim, cap, slope_of(item, head), 0)
            head += 1
            if head == group:
                token, head = token + 1, 0

    return rows_loop


def _chunk_loop(is_scaled: bool) -> Any:
    soften = _softmax_rows(is_scaled)

    def rows_loop(has_two: bool) -> Any:
        scores, values = _score_loop(has_two), _value_loop(has_two)

        @inline
        def some_rows(item, first, base, slices, k0, k1, k_stride, v0, v1, scales):  # type: ignore[no-untyped-def]
            """Attend with rows from `first` on to one slice of keys (k0, v0) or two (also k1, v1), from `base` on."""
            op, work = load_i64(item + ITEM.op), load_i64(item + ITEM.work)
            head_dim = load_i64(op + ATTENTION.head_dim)
            size, q = state_bytes(head_dim), _queries(work) + first * head_dim * 2
            for i in range(slices):
                scores(q, work + i * _SLICE * 4, k0 + i * (k1 - k0), k_stride, head_dim)
            states = load_i64(item + ITEM.states) + first * size
            soften(item, first, base, states, work, work + TILE_SCORES_BYTES, scales)
            values(work + TILE_SCORES_BYTES, v0, v1, slices, states, size, head_dim)

        return some_rows

    two_tiles, one_tile = rows_loop(True), rows_loop(False)

    @inline
    def chunk(item, base, slices, k0, k1, k_stride, v0, v1, scales):  # type: ignore[no-untyped-def]
        """Attend with all rows that see any of the keys."""
        op, group, rows = load_i64(item + ITEM.op), load_i64(item + ITEM.group), load_i64(item + ITEM.rows)
        position, window = load_i64(item + ITEM.position), load_i64(op + ATTENTION.window)
        for first in range(0, rows, 32):
            low, high = position + first // group, min(first + 31, rows - 1) // group
            if end_key(item, high) > base and first_key(low, window) < base + slices * _SLICE:
                if first + 16 < rows:
                    two_tiles(item, first, base, slices, k0, k1, k_stride, v0, v1, scales)
                else:
                    one_tile(item, first, base, slices, k0, k1, k_stride, v0, v1, scales)

    return chunk


@inline
def _block_at(item, t):  # type: ignore[no-untyped-def]
    """Return the offset in the cache of the block with key `t`."""
    op = load_i64(item + ITEM.op)
    block = load_i32(load_i64(item + ITEM.table) + t // load_i64(op + ATTENTION.block_size) * 4)
    return block * load_i64(op + ATTENTION.block_stride) + load_i64(item + ITEM.kv_head) * load_i64(
        op + ATTENTION.block_bytes
    )


@inline
def _attend_bf16(item, begin, end):  # type: ignore[no-untyped-def]
    """Attend to chunks of keys, read from the cache."""
    op = load_i64(item + ITEM.op)
    block_size, head_dim = load_i64(op + ATTENTION.block_size), load_i64(op + ATTENTION.head_dim)
    k_cache, v_cache = load_i64(op + ATTENTION.k_cache), load_i64(op + ATTENTION.v_cache)
    for base in range(begin // CHUNK * CHUNK, end, CHUNK):
        slices = min(CHUNK, end - base + _SLICE - 1) // _SLICE
        last = base + (slices - 1) * _SLICE
        block0, block1 = _block_at(item, base), _block_at(item, last)
        t0, t1 = base % block_size, last % block_size
        k0, k1 = k_cache + block0 + t0 * 4, k_cache + block1 + t1 * 4
        v0, v1 = v_cache + block0 + t0 * head_dim * 2, v_cache + block1 + t1 * head_dim * 2
        _chunk_bf16(item, base, slices, k0, k1, block_size * 4, v0, v1, 0)


def _attend_codes(convert: Any) -> Any:
    chunk = _chunk_loop(True)

    @inline
    def attend(item, begin, end):  # type: ignore[no-untyped-def]
        """Attend to chunks of keys, each converted first."""
        op, rows = load_i64(item + ITEM.op), (load_i64(item + ITEM.rows) + 31) // 32 * 32
        block_size, head_dim = load_i64(op + ATTENTION.block_size), load_i64(op + ATTENTION.head_dim)
        scales = load_i64(item + ITEM.work) + TILE_SCORES_BYTES + TILE_WEIGHTS_BYTES
        k_to = _queries(load_i64(item + ITEM.work)) + rows * head_dim * 2
        v_to, v_next = k_to + CHUNK * head_dim * 2, _SLICE * head_dim * 2
        for base in range(begin // CHUNK * CHUNK, end, CHUNK):
            slices = min(CHUNK, end - base + _SLICE - 1) // _SLICE
            for i in range(slices):
                t, at = base + i * _SLICE, _block_at(item, base + i * _SLICE)
                k, v = load_i64(op + ATTENTION.k_cache) + at, load_i64(op + ATTENTION.v_cache) + at
                to = k_to + i * _SLICE * 4
                convert(k, v, t % block_size, block_size, head_dim, to, v_to + i * v_next, scales + i * _SLICE * 4)
            chunk(item, base, slices, k_to, k_to + _SLICE * 4, CHUNK * 4, v_to, v_to + v_next, scales)

    return attend


def _kernel(name: str, attend: Any) -> Kernel:
    items = attention_items(_prepare, attend)

    @inline
    def attention(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        amx.configure(16)
        items(operands, cores, step, worker, workers)
        amx.release()

    return made_kernel(name, attention)


_chunk_bf16 = _chunk_loop(False)
attention_amx = _kernel("attention_amx", _attend_bf16)
attention_i8_amx = _kernel("attention_i8_amx", _attend_codes(cache_elements.tiles_of_int8))
attention_e4m3_amx = _kernel("attention_e4m3_amx", _attend_codes(cache_elements.tiles_of_e4m3))
