"""Latent attention around the cache: the write of latents, and products that take heads to rows of the cache and back.

Keys and values of a head are products of one latent of each token. The product of keys is applied to the query, and
that of values to the weighted sum of latents, so the cache holds latents alone. Source: DeepSeek-V2, arXiv 2405.04434,
section 2.1.2. Rows are taken four at a time, so one load of weights serves four; the order of a sum depends on nothing.
"""

from __future__ import annotations

import math
from typing import Any

from ...config.formats import Dtype, KVCacheDtype
from ..attention import cache_elements
from ..attention.cache_elements import CacheCell
from ..attention.items import COUNTER_BYTES
from ..attention.rope import rotate, rotate_neighbours
from ..isa import simd
from ..isa.element_types import BFLOAT16, FLOAT32, Cell
from ..isa.jit import Kernel, inline, made_kernel, share_begin
from ..isa.memory import copy_4_bytes, load_f32, load_i32, load_i64, store_f32, store_i64
from ..records import STEP
from .products import four_row_products
from .records import LATENT, LATENT_BYTES

_TOKENS = 16  # of one item


@inline
def _norm(row, weight, rank, eps):  # type: ignore[no-untyped-def]
    """Set the first `rank` elements to row / root mean square * weight."""
    squares = zero = simd.splat(0.0)
    for i in range(0, rank, 16):
        value = simd.select_range(0, rank - i, simd.load(row + i * 4), zero)
        squares = simd.fma(value, value, squares)
    scale = 1.0 / math.sqrt(simd.sum_lanes(squares) / rank + eps)
    for i in range(rank):
        store_f32(row + i * 4, load_f32(row + i * 4) * scale * load_f32(weight + i * 4))


@inline
def _rotated(op, head, position, scale):  # type: ignore[no-untyped-def]
    """Rotate the elements at `head` by their angles, times `scale`."""
    rotary = load_i64(op + LATENT.rotary)
    at = position * (rotary // 2) * 4
    cos, sin = load_i64(op + LATENT.cos) + at, load_i64(op + LATENT.sin) + at
    if load_i64(op + LATENT.is_interleaved) != 0:
        rotate_neighbours(head, cos, sin, rotary // 2, scale)
    else:
        rotate(head, cos, sin, rotary // 2, scale)


def _writer(cell: CacheCell) -> Any:
    encode, size, is_scaled = cell.encode_key, cell.size, cell.is_scaled

    @inline
    def latent_kv(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        """Norm and rotate the latent of each token, and write it to its slot on every core. Items are tokens."""
        # Attention counts the items taken from this worker's share.
        store_i64(load_i64(step + STEP.counters) + worker * COUNTER_BYTES, 0)
        tokens, rank = load_i64(step + STEP.num_tokens), load_i64(operands + LATENT.rank)
        row_pad, used = load_i64(operands + LATENT.row_pad), rank + load_i64(operands + LATENT.rotary)
        slots = load_i64(step + STEP.slots)
        slots += load_i64(operands + LATENT.kv_group) * load_i64(step + STEP.slots_stride)
        block_size, block_bytes = load_i64(operands + LATENT.block_size), load_i64(operands + LATENT.block_bytes)
        for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
            row = load_i64(operands + LATENT.latent) + t * load_i64(operands + LATENT.latent_width) * 4
            _norm(row, load_i64(operands + LATENT.norm), rank, load_f32(operands + LATENT.eps))
            _rotated(operands, row + rank * 4, load_i32(load_i64(step + STEP.positions) + t * 4), 1.0)
            for i in range(used, row_pad):
                store_f32(row + i * 4, 0.0)
            scale, slot = encode(row, row_pad), load_i32(slots + t * 4)
            block, offset = slot // block_size * block_bytes, slot % block_size
            for core in range(cores):
                to = load_i64(operands + core * LATENT_BYTES + LATENT.cache) + block
                for i in range(0, row_pad * size, 4):
                    copy_4_bytes(row + i, to + offset * row_pad * size + i)
                if is_scaled:
                    store_f32(to + block_size * row_pad * size + offset * 4, scale)

    return latent_kv


def _by_head(run: Any) -> Any:
    """Return a kernel's loop over items: up to sixteen tokens of a head, of every core. Items of a head follow."""

    @inline
    def loop(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        tokens, heads = load_i64(step + STEP.num_tokens), load_i64(operands + LATENT.heads)
        blocks = (tokens + _TOKENS - 1) // _TOKENS
        items = cores * heads * blocks
        for item in range(share_begin(items, worker, workers), share_begin(items, worker + 1, workers)):
            op, first = operands + item // (heads * blocks) * LATENT_BYTES, item % blocks * _TOKENS
            run(op, step, item // blocks % heads, first, min(first + _TOKENS, tokens))

    return loop


@inline
def _head_weights(op, head, size):  # type: ignore[no-untyped-def]
    """Return the address of a head's rows of keys; `size`: of an element."""
    rows = load_i64(op + LATENT.size) + load_i64(op + LATENT.value_size)
    return load_i64(op + LATENT.weights) + head * rows * load_i64(op + LATENT.weight_width) * size


def _absorb(cell: Cell) -> Any:
    load, size = cell.load, cell.size

    @inline
    def absorb(op, w, q, to, step_q, step_to, last):  # type: ignore[no-untyped-def]
        """Write four rows `q @ w * scale`, or fewer: row `last` is the last, and is written again."""
        width, rank, nope = load_i64(op + LATENT.weight_width), load_i64(op + LATENT.rank), load_i64(op + LATENT.size)
        by = simd.splat(load_f32(op + LATENT.scale))
        r1, r2, r3 = min(1, last), min(2, last), min(3, last)
        q1, q2, q3 = q + r1 * step_q, q + r2 * step_q, q + r3 * step_q
        to1, to2, to3 = to + r1 * step_to, to + r2 * step_to, to + r3 * step_to
        for r in range(0, rank, 32):  # rows of weights have multiples of 64 elements
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = simd.splat(0.0)
            for d in range(nope):
                at = w + (d * width + r) * size
                a, b = load(at), load(at + 16 * size)
                x0, x1 = simd.splat(load_f32(q + d * 4)), simd.splat(load_f32(q1 + d * 4))
                x2, x3 = simd.splat(load_f32(q2 + d * 4)), simd.splat(load_f32(q3 + d * 4))
                a0, b0 = simd.fma(x0, a, a0), simd.fma(x0, b, b0)
                a1, b1 = simd.fma(x1, a, a1), simd.fma(x1, b, b1)
                a2, b2 = simd.fma(x2, a, a2), simd.fma(x2, b, b2)
                a3, b3 = simd.fma(x3, a, a3), simd.fma(x3, b, b3)
            simd.store(to + r * 4, simd.mul(a0, by))
            simd.store(to1 + r * 4, simd.mul(a1, by))
            simd.store(to2 + r * 4, simd.mul(a2, by))
            simd.store(to3 + r * 4, simd.mul(a3, by))
            if r + 16 < rank:
                simd.store(to + r * 4 + 64, simd.mul(b0, by))
                simd.store(to1 + r * 4 + 64, simd.mul(b1, by))
                simd.store(to2 + r * 4 + 64, simd.mul(b2, by))
                simd.store(to3 + r * 4 + 64, simd.mul(b3, by))

    return absorb


def _queries(cell: Cell) -> Any:
    absorb, size = _absorb(cell), cell.size

    @inline
    def run(op, step, head, begin, end):  # type: ignore[no-untyped-def]
        """Write the rows of one head's queries."""
        nope, rotary, rank = load_i64(op + LATENT.size), load_i64(op + LATENT.rotary), load_i64(op + LATENT.rank)
        row_pad, positions = load_i64(op + LATENT.row_pad), load_i64(step + STEP.positions)
        step_q, step_to = load_i64(op + LATENT.query_width) * 4, load_i64(op + LATENT.heads) * row_pad * 4
        query = load_i64(op + LATENT.query) + head * (nope + rotary) * 4
        rows, w = load_i64(op + LATENT.rows) + head * row_pad * 4, _head_weights(op, head, size)
        for t in range(begin, end, 4):
            absorb(op, w, query + t * step_q, rows + t * step_to, step_q, step_to, end - t - 1)
        for t in range(begin, end):
            q, to = query + t * step_q + nope * 4, rows + t * step_to + rank * 4
            _rotated(op, q, load_i32(positions + t * 4), load_f32(op + LATENT.scale))
            for i in range(rotary):
                store_f32(to + i * 4, load_f32(q + i * 4))
            for i in range(rank + rotary, row_pad):
                store_f32(to + (i - rank) * 4, 0.0)

    return _by_head(run)


def _values(cell: Cell) -> Any:
    products, size = four_row_products(cell.load, cell.size), cell.size

    @inline
    def expand(op, w, row, to, step_row, step_to, last):  # type: ignore[no-untyped-def]
        """Write four rows of a head's values, or fewer: row `last` is the last, and is written again."""
        r1, r2, r3 = min(1, last), min(2, last), min(3, last)
        row1, row2, row3 = row + r1 * step_row, row + r2 * step_row, row + r3 * step_row
        to1, to2, to3 = to + r1 * step_to, to + r2 * step_to, to + r3 * step_to
        rank, width = load_i64(op + LATENT.rank), load_i64(op + LATENT.weight_width) * size
        # Weights beyond the rank are zero.
        products(row, row1, row2, row3, w, width, to, to1, to2, to3, rank, load_i64(op + LATENT.value_size))

    @inline
    def run(op, step, head, begin, end):  # type: ignore[no-untyped-def]
        """Write the values of one head."""
        row_pad, count = load_i64(op + LATENT.row_pad), load_i64(op + LATENT.value_size)
        step_row, step_to = load_i64(op + LATENT.heads) * row_pad * 4, load_i64(op + LATENT.values_width) * 4
        w = _head_weights(op, head, size) + load_i64(op + LATENT.size) * load_i64(op + LATENT.weight_width) * size
        rows = load_i64(op + LATENT.rows) + head * row_pad * 4
        values = load_i64(op + LATENT.values) + head * count * 4
        for t in range(begin, end, 4):
            expand(op, w, rows + t * step_row, values + t * step_to, step_row, step_to, end - t - 1)

    return _by_head(run)


WRITES: dict[KVCacheDtype, Kernel] = {
    "bfloat16": made_kernel("latent_write_bf16", _writer(cache_elements.BFLOAT16)),
    "float32": made_kernel("latent_write_f32", _writer(cache_elements.FLOAT32)),
    "int8": made_kernel("latent_write_i8", _writer(cache_elements.INT8)),
    "fp8": made_kernel("latent_write_e4m3", _writer(cache_elements.FLOAT8)),
}
QUERIES: dict[Dtype, Kernel] = {
    "bfloat16": made_kernel("latent_queries_bf16", _queries(BFLOAT16)),
    "float32": made_kernel("latent_queries_f32", _queries(FLOAT32)),
}
VALUES: dict[Dtype, Kernel] = {
    "bfloat16": made_kernel("latent_values_bf16", _values(BFLOAT16)),
    "float32": made_kernel("latent_values_f32", _values(FLOAT32)),
}
