"""Paged attention on lanes with online softmax: prefill chunks and decode in one kernel, grouped heads, sliding window.

Keys are taken in chunks of CHUNK tokens of the context, and each row applies its own causal limits. So a row's result
does not depend on how its prompt was chunked or which rows share its item. The rows of an item (items.py) are taken
four or eight at a time, so one load of K or V serves all. An item with more than `direct_rows` rows converts the chunk
to float32 in its scratch once; the numbers, and the results, are the same.
"""

from __future__ import annotations

from typing import Any

from ...device.attention_layout import CHUNK, VALUES
from ..isa import avx512, simd
from ..isa.jit import inline, made_kernel
from ..isa.memory import load_i64, prefetch_to_l2
from ..records import ATTENTION
from . import cache_elements
from .cache_elements import FLOAT32, CacheCell
from .items import ITEM, attention_items
from .lane_items import block_place, line_of, scales_of, sees, soften_rows
from .lane_rows import eight_row_loops, four_row_loops
from .softmax import IN_FLOAT32, LINE, softmax
from .state import state_bytes


@inline
def prepare(item):  # type: ignore[no-untyped-def]
    """Do nothing: queries are read where the matmul left them."""


@inline
def query_of(item, r):  # type: ignore[no-untyped-def]
    """Return the address of row `r`'s query."""
    op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
    head = load_i64(item + ITEM.first_head) + r % group
    token = load_i64(item + ITEM.row) + r // group
    at = token * load_i64(op + ATTENTION.ldc) + head * load_i64(op + ATTENTION.head_dim)
    return load_i64(op + ATTENTION.qkv) + at * 4


@inline
def _elements(item):  # type: ignore[no-untyped-def]
    """Return the address of the chunk's K, followed by its V, in float32."""
    return scales_of(item) + 2 * LINE


def _four_rows(cell: CacheCell) -> Any:
    """Return the products of rows `r` to r + 3, or fewer at the end, with a run of keys."""
    scores, values = four_row_loops(cell)

    @inline
    def score_rows(item, r, k, stride, offset, width):  # type: ignore[no-untyped-def]
        """Compute scores of `width` keys; the first is `offset` tokens into the chunk."""
        last, op, s = load_i64(item + ITEM.rows) - 1, load_i64(item + ITEM.op), line_of(item, 0) + offset * 4
        r1, r2, r3 = min(r + 1, last), min(r + 2, last), min(r + 3, last)
        q0, q1, q2, q3 = query_of(item, r), query_of(item, r1), query_of(item, r2), query_of(item, r3)
        s0, s1, s2, s3 = s + r * LINE, s + r1 * LINE, s + r2 * LINE, s + r3 * LINE
        scores(q0, q1, q2, q3, k, stride, s0, s1, s2, s3, load_i64(op + ATTENTION.head_dim), width)

    @inline
    def add_values(item, r, v, offset, width):  # type: ignore[no-untyped-def]
        """Add the values of these keys, times the weights."""
        last, op, w = load_i64(item + ITEM.rows) - 1, load_i64(item + ITEM.op), line_of(item, 0) + offset * 4
        head_pad, to = load_i64(op + ATTENTION.head_pad), load_i64(item + ITEM.states) + VALUES
        size, r1, r2, r3 = state_bytes(head_pad), min(r + 1, last), min(r + 2, last), min(r + 3, last)
        w0, w1, w2, w3 = w + r * LINE, w + r1 * LINE, w + r2 * LINE, w + r3 * LINE
        values(v, w0, w1, w2, w3, to + r * size, to + r1 * size, to + r2 * size, to + r3 * size, head_pad, width)

    return score_rows, add_values


@inline
def _are_eight(item, r, base):  # type: ignore[no-untyped-def]
    """Return whether rows `r` to r + 7 are computed together."""
    if avx512.has_registers() and r + 8 <= load_i64(item + ITEM.rows):
        return sees(item, r, 4, base) and sees(item, r + 4, 4, base)
    return False


def _all_rows() -> Any:
    """Return the products of all rows with the chunk's float32 elements."""
    (score_four, add_four), (scores, values) = _four_rows(FLOAT32), eight_row_loops(FLOAT32)

    @inline
    def score_eight(item, r):  # type: ignore[no-untyped-def]
        q0, q1, q2, q3 = query_of(item, r), query_of(item, r + 1), query_of(item, r + 2), query_of(item, r + 3)
        q4, q5, q6, q7 = query_of(item, r + 4), query_of(item, r + 5), query_of(item, r + 6), query_of(item, r + 7)
        head_dim = load_i64(load_i64(item + ITEM.op) + ATTENTION.head_dim)
        scores((q0, q1, q2, q3, q4, q5, q6, q7), _elements(item), LINE, line_of(item, r), head_dim, CHUNK)

    @inline
    def score_rows(item, base):  # type: ignore[no-untyped-def]
        r = 0
        while r < load_i64(item + ITEM.rows):
            if _are_eight(item, r, base):
                score_eight(item, r)
                r += 4
            elif sees(item, r, 4, base):
                score_four(item, r, _elements(item), LINE, 0, CHUNK)
            r += 4

    @inline
    def add_values(item, base, v, offset, width):  # type: ignore[no-untyped-def]
        r, head_pad = 0, load_i64(load_i64(item + ITEM.op) + ATTENTION.head_pad)
        size, to = state_bytes(head_pad), load_i64(item + ITEM.states) + VALUES
        while r < load_i64(item + ITEM.rows):
            if _are_eight(item, r, base):
                values(v, line_of(item, r) + offset * 4, to + r * size, size, head_pad, width)
                r += 4
            elif sees(item, r, 4, base):
                add_four(item, r, v, offset, width)
            r += 4

    return score_rows, add_values


@inline
def fetch_next(item, cache, base, end):  # type: ignore[no-untyped-def]
    """Prefetch the blocks of K, or V, that begin in the next chunk: the host cannot predict their addresses."""
    op = load_i64(item + ITEM.op)
    block_size, block_bytes = load_i64(op + ATTENTION.block_size), load_i64(op + ATTENTION.block_bytes)
    block = (base + CHUNK + block_size - 1) // block_size
    while block * block_size < min(end, base + 2 * CHUNK):
        at = cache + block_place(item, block)
        for line in range(at, at + block_bytes, 64):
            prefetch_to_l2(line)
        block += 1


def by_block(run: Any) -> Any:
    """Return a loop over the blocks of a chunk."""

    @inline
    def loop(item, base, first, stop):  # type: ignore[no-untyped-def]
        """Process tokens first <= t < stop of the chunk that begins at `base`."""
        block_size, t = load_i64(load_i64(item + ITEM.op) + ATTENTION.block_size), first
        while t < stop:
            block = t // block_size
            end = min(stop, (block + 1) * block_size)
            run(item, t - base, end - t, block_place(item, block), t - block * block_size)
            t = end

    return loop


def _keys(cell: CacheCell, is_direct: bool) -> Any:
    size, is_scaled, load = cell.size, cell.is_scaled, cell.load
    score_rows, _ = _four_rows(cell)

    @inline
    def keys(item, offset, width, place, at):  # type: ignore[no-untyped-def]
        """Compute the four rows' scores with K of `width` tokens from `at` of a block, or convert it; copy scales."""
        op, to = load_i64(item + ITEM.op), _elements(item) + offset * 4
        head_dim, block_size = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.block_size)
        k = load_i64(op + ATTENTION.k_cache) + place
        if is_direct:
            for r in range(0, load_i64(item + ITEM.rows), 4):
                score_rows(item, r, k + at * size, block_size * size, offset, width)
        else:
            for t in range(0, width, 16):
                for d in range(head_dim):
                    simd.store(to + d * LINE + t * 4, load(k + (d * block_size + at + t) * size))
        if is_scaled:
            behind = load_i64(op + ATTENTION.head_pad) * block_size * size + at * 4
            v, scales = load_i64(op + ATTENTION.v_cache) + place + behind, scales_of(item) + offset * 4
            for t in range(0, width * 4, 64):
                simd.store(scales + t, simd.load(k + behind + t))
                simd.store(scales + LINE + t, simd.load(v + t))

    return by_block(keys)


def _values(cell: CacheCell, is_direct: bool) -> Any:
    size, load = cell.size, cell.load
    _, add_values = _four_rows(cell)

    @inline
    def values(item, offset, width, place, at):  # type: ignore[no-untyped-def]
        """Process V of `width` tokens from `at` of a block on: add it to four rows, or convert it to float32."""
        op, head_pad = load_i64(item + ITEM.op), load_i64(load_i64(item + ITEM.op) + ATTENTION.head_pad)
        v, to = load_i64(op + ATTENTION.v_cache) + place + at * head_pad * size, _elements(item) + offset * head_pad * 4
        if is_direct:
            for r in range(0, load_i64(item + ITEM.rows), 4):
                add_values(item, r, v, offset, width)
        else:
            for i in range(0, width * head_pad, 16):
                simd.store(to + i * 4, load(v + i * size))

    return by_block(values)


def _chunk_loops(cell: CacheCell) -> Any:
    score, add = _keys(cell, True), _values(cell, True)
    convert_keys, convert_values = _keys(cell, False), _values(cell, False)
    score_rows, add_values = _all_rows()
    soften, direct_rows = soften_rows(softmax(IN_FLOAT32, cell.is_scaled)), cell.direct_rows

    @inline
    def weigh(item, base, first, stop):  # type: ignore[no-untyped-def]
        """Compute all rows' weights for the keys first <= t < stop of the chunk at `base`."""
        rows = load_i64(item + ITEM.rows)
        if rows <= direct_rows:
            score(item, base, first, stop)
        else:
            convert_keys(item, base, first, stop)
            score_rows(item, base)
        soften(item, base)

    @inline
    def add_up(item, base, begin, end):  # type: ignore[no-untyped-def]
        """Add the values begin <= t < end of the chunk to all rows."""
        rows, head_pad = load_i64(item + ITEM.rows), load_i64(load_i64(item + ITEM.op) + ATTENTION.head_pad)
        if rows <= direct_rows:
            add(item, base, begin, end)
        else:
            convert_values(item, base, begin, end)
            add_values(item, base, _elements(item) + (begin - base) * head_pad * 4, begin - base, end - begin)

    return weigh, add_up


def _attend(cell: CacheCell) -> Any:
    keys, values = _chunk_loops(cell)

    @inline
    def attend(item, begin, end):  # type: ignore[no-untyped-def]
        op, block_size = load_i64(item + ITEM.op), load_i64(load_i64(item + ITEM.op) + ATTENTION.block_size)
        # K is read wherever the sequence has a block; surplus scores do not count. Slots of V without a token of the
        # sequence may hold old values, so they are never read, not even with weight zero.
        first, stop = begin // block_size * block_size, (end + block_size - 1) // block_size * block_size
        for base in range(begin // CHUNK * CHUNK, end, CHUNK):
            after = base + CHUNK
            fetch_next(item, load_i64(op + ATTENTION.k_cache), base, end)
            keys(item, base, max(base, first), min(after, stop))
            fetch_next(item, load_i64(op + ATTENTION.v_cache), base, end)
            values(item, base, max(base, begin), min(after, end))

    return attend


attention_bf16 = made_kernel("attention_bf16", attention_items(prepare, _attend(cache_elements.BFLOAT16)))
attention_f32 = made_kernel("attention_f32", attention_items(prepare, _attend(cache_elements.FLOAT32)))
attention_i8 = made_kernel("attention_i8", attention_items(prepare, _attend(cache_elements.INT8)))
attention_e4m3 = made_kernel("attention_e4m3", attention_items(prepare, _attend(cache_elements.FLOAT8)))
