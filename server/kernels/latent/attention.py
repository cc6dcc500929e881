"""Paged latent attention on lanes: every query head reads one row of each token, which is its key and its value.

Items, causal limits, chunks of keys and softmax are those of attention/lanes.py; a row's result depends on the row
alone. The weighted sums have all elements of a row; the rotated ones at its end are not values and are left unread.
"""

from __future__ import annotations

from typing import Any

from ...config.formats import KVCacheDtype
from ...device.attention_layout import CHUNK, VALUES
from ..attention import cache_elements
from ..attention.cache_elements import CacheCell
from ..attention.items import ITEM, attention_items
from ..attention.lane_items import line_of, scales_of, soften_rows
from ..attention.lane_rows import eight_row_loops, four_row_loops
from ..attention.lanes import by_block, fetch_next, prepare, query_of
from ..attention.softmax import IN_FLOAT32, LINE, softmax
from ..attention.state import state_bytes
from ..isa import avx512
from ..isa.jit import Kernel, inline, made_kernel
from ..isa.memory import load_f32, load_i64, store_f32
from ..records import ATTENTION
from .products import four_row_products


def _keys(cell: CacheCell) -> Any:
    scores, size, is_scaled = four_row_products(cell.load, cell.size), cell.size, cell.is_scaled

    @inline
    def keys(item, offset, width, place, at):  # type: ignore[no-untyped-def]
        """Compute all rows' scores with `width` tokens from `at` of a block on; copy scales."""
        op, last, line = load_i64(item + ITEM.op), load_i64(item + ITEM.rows) - 1, line_of(item, 0) + offset * 4
        row_pad, cache = load_i64(op + ATTENTION.head_pad), load_i64(op + ATTENTION.k_cache) + place
        k = cache + at * row_pad * size
        for r in range(0, last + 1, 4):
            r1, r2, r3 = min(r + 1, last), min(r + 2, last), min(r + 3, last)
            q, q1, q2, q3 = query_of(item, r), query_of(item, r1), query_of(item, r2), query_of(item, r3)
            s, s1, s2, s3 = line + r * LINE, line + r1 * LINE, line + r2 * LINE, line + r3 * LINE
            scores(q, q1, q2, q3, k, row_pad * size, s, s1, s2, s3, row_pad, width)
        if is_scaled:
            behind = cache + load_i64(op + ATTENTION.block_size) * row_pad * size + at * 4
            scales = scales_of(item) + offset * 4
            for t in range(width):
                scale = load_f32(behind + t * 4)
                store_f32(scales + t * 4, scale)
                store_f32(scales + LINE + t * 4, scale)

    return by_block(keys)


def _values(cell: CacheCell) -> Any:
    size, (_, add), (_, add_eight) = cell.size, four_row_loops(cell), eight_row_loops(cell)

    @inline
    def values(item, offset, width, place, at):  # type: ignore[no-untyped-def]
        """Add the rows of these tokens, times the weights."""
        op, last, w = load_i64(item + ITEM.op), load_i64(item + ITEM.rows) - 1, line_of(item, 0) + offset * 4
        row_pad, to = load_i64(op + ATTENTION.head_pad), load_i64(item + ITEM.states) + VALUES
        v, state = load_i64(op + ATTENTION.k_cache) + place + at * row_pad * size, state_bytes(row_pad)
        eights = (last + 1) // 8 * 8 if avx512.has_registers() else 0
        for r in range(0, eights, 8):
            add_eight(v, w + r * LINE, to + r * state, state, row_pad, width)
        for r in range(eights, last + 1, 4):
            r1, r2, r3 = min(r + 1, last), min(r + 2, last), min(r + 3, last)
            w0, w1, w2, w3 = w + r * LINE, w + r1 * LINE, w + r2 * LINE, w + r3 * LINE
            add(v, w0, w1, w2, w3, to + r * state, to + r1 * state, to + r2 * state, to + r3 * state, row_pad, width)

    return by_block(values)


def _attend(cell: CacheCell) -> Any:
    keys, values, soften = _keys(cell), _values(cell), soften_rows(softmax(IN_FLOAT32, cell.is_scaled))

    @inline
    def attend(item, begin, end):  # type: ignore[no-untyped-def]
        cache = load_i64(load_i64(item + ITEM.op) + ATTENTION.k_cache)
        for base in range(begin // CHUNK * CHUNK, end, CHUNK):
            first, stop = max(base, begin), min(base + CHUNK, end)
            fetch_next(item, cache, base, end)
            keys(item, base, first, stop)
            soften(item, base)
            values(item, base, first, stop)

    return attend


def _kernel(name: str, cell: CacheCell) -> Kernel:
    return made_kernel(name, attention_items(prepare, _attend(cell)))


KERNELS: dict[KVCacheDtype, Kernel] = {
    "bfloat16": _kernel("latent_attention_bf16", cache_elements.BFLOAT16),
    "float32": _kernel("latent_attention_f32", cache_elements.FLOAT32),
    "int8": _kernel("latent_attention_i8", cache_elements.INT8),
    "fp8": _kernel("latent_attention_e4m3", cache_elements.FLOAT8),
}
