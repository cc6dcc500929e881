"""Attention on lanes over 8-bit keys and values by pairs of integer products (VPMADDWD); lanes.py uses FMA instead.

The cache lies in pairs (rope.py writes it): K [head_dim/2][block][2], V [block/2][head_pad][2]. Widened to int16
(float8: to whole 16ths) it is the instruction's operand. A query becomes int16 once for each item, with its own scale.
A chunk's weights, multiplied by V's scales, become int16 by the largest of them. Sums over a head or a chunk are exact
in int32 in any order, and scales depend on the row and the chunk alone. A slot without a token has weight zero.

Lines of the next chunk are prefetched as fast as those of this chunk are used, once for each block of rows, and across
the end of an item. The first block prefetches again half a chunk later, which measured faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...device.attention_layout import CHUNK, RUN, RUN_BYTES, RUNS_BYTES, VALUES
from ..isa import simd
from ..isa.int16_pairs import FLOAT8, INT8, INT16_MAX, Codes, store_i16, sums_of
from ..isa.jit import inline, made_kernel
from ..isa.memory import hidden, load_i64, prefetch_to_l2, store_f32, store_i64
from ..records import ATTENTION, offsets
from .cache_elements import LEAST, load_first
from .items import ITEM, attention_items, end_key
from .lane_items import line_of, place_of, scales_of, sees, soften_rows
from .softmax import IN_FLOAT32, LINE, WEIGHTS_SCALE, narrow_weights, softmax
from .state import state_bytes


class RunRecord(NamedTuple):
    """Byte offsets in the cache of RUN keys of the current chunk and of the next one."""

    keys: int
    values: int
    scales: int  # of keys, and of values
    next_keys: int
    next_values: int
    next_scales: int


_RUN = offsets(RunRecord)


@inline
def _runs(item):  # type: ignore[no-untyped-def]
    """Return the address of the records of the chunk's runs."""
    return scales_of(item) + 2 * LINE


@inline
def _query_scales(item):  # type: ignore[no-untyped-def]
    """Return the address of the rows' scales, a float32 each."""
    return _runs(item) + RUNS_BYTES


@inline
def _queries(item):  # type: ignore[no-untyped-def]
    """Return the address of the rows' queries, head_pad int16 each."""
    return _query_scales(item) + load_i64(load_i64(item + ITEM.op) + ATTENTION.state_rows) * 4


@inline
def _narrow_query(query, to, head_dim, limit):  # type: ignore[no-untyped-def]
    """Convert a float32 query to int16, padded with zeros. Returns its scale, NaN if an element is not finite."""
    zero = highest = strange = simd.splat(0.0)
    for d in range(0, head_dim, 16):
        value = load_first(query + d * 4, min(head_dim - d, 16))
        highest = simd.larger(simd.absolute(simd.finite(value)), highest)
        strange = simd.fma(simd.sub(value, simd.finite(value)), zero, strange)
    largest, inverse = simd.max_lanes(highest), 0.0
    if largest > LEAST:
        inverse = limit / largest
    for d in range(0, head_dim, 16):
        value = simd.finite(load_first(query + d * 4, min(head_dim - d, 16)))
        store_i16(to + d * 2, simd.mul(value, simd.splat(inverse)))
    return largest / limit + simd.sum_lanes(strange)


def _most(largest: int, count: int) -> int:
    """Return the largest int16 that keeps the sum of `count` products with codes up to `largest` within int32."""
    return min(INT16_MAX, 0x7FFFFFFF // (largest * count))


def _prepare(codes: Codes) -> Any:
    _, largest, unit = codes
    most = inline(_most)

    @inline
    def prepare(item):  # type: ignore[no-untyped-def]
        """Convert the queries of all rows to int16."""
        op, group, rows = load_i64(item + ITEM.op), load_i64(item + ITEM.group), load_i64(item + ITEM.rows)
        head_dim, head_pad = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.head_pad)
        at = load_i64(item + ITEM.row) * load_i64(op + ATTENTION.ldc) + load_i64(item + ITEM.first_head) * head_dim
        token, r, limit = load_i64(op + ATTENTION.qkv) + at * 4, 0, most(largest, head_dim) * 1.0
        while r < rows:
            for head in range(group):
                to = _queries(item) + (r + head) * head_pad * 2
                scale = _narrow_query(token + head * head_dim * 4, to, head_dim, limit)
                store_f32(_query_scales(item) + (r + head) * 4, scale * unit)
            token, r = token + load_i64(op + ATTENTION.ldc) * 4, r + group

    return prepare


@inline
def _go_on(item, head, base, begin, end):  # type: ignore[no-untyped-def]
    """Make the next chunk the current one, and find the next of a kv head at `base`, with keys begin <= t < end."""
    op, block_size = load_i64(item + ITEM.op), load_i64(load_i64(item + ITEM.op) + ATTENTION.block_size)
    head_pad = load_i64(op + ATTENTION.head_pad)
    k_cache, v_cache = load_i64(op + ATTENTION.k_cache), load_i64(op + ATTENTION.v_cache)
    for i in range(CHUNK // RUN):
        run, t = _runs(item) + i * RUN_BYTES, base + i * RUN
        store_i64(run + _RUN.keys, load_i64(run + _RUN.next_keys))
        store_i64(run + _RUN.values, load_i64(run + _RUN.next_values))
        store_i64(run + _RUN.scales, load_i64(run + _RUN.next_scales))
        if begin < t + RUN and t < end:
            block = t // block_size
            place, at = place_of(item, head, block), t - block * block_size
            scales = place + head_pad * block_size + at * 4
            store_i64(run + _RUN.next_keys, place + at * 2)
            store_i64(run + _RUN.next_values, place + at * head_pad)
            store_i64(run + _RUN.next_scales, scales)
            prefetch_to_l2(k_cache + scales)
            prefetch_to_l2(v_cache + scales)


@inline
def _gather_scales(item, first, stop):  # type: ignore[no-untyped-def]
    """Copy the scales of the chunk's runs first <= i < stop side by side."""
    op, scales = load_i64(item + ITEM.op), scales_of(item)
    for i in range(first, stop):
        at = load_i64(_runs(item) + i * RUN_BYTES + _RUN.scales)
        simd.store(scales + i * RUN * 4, simd.load(load_i64(op + ATTENTION.k_cache) + at))
        simd.store(scales + LINE + i * RUN * 4, simd.load(load_i64(op + ATTENTION.v_cache) + at))


class Block(NamedTuple):
    """Products that are computed at once."""

    bits: int  # of a register
    rows: int  # at most
    vectors: int  # of sixteen keys, or of sixteen elements of values
    codes: Codes


@inline
def _fetch(left, right):  # type: ignore[no-untyped-def]
    """Prefetch 128 bytes of the next chunk at two places: as many as are computed between two calls."""
    prefetch_to_l2(left)
    prefetch_to_l2(left + 64)
    prefetch_to_l2(right)
    prefetch_to_l2(right + 64)


def _end_of_words(vectors: int) -> Any:
    """Return the identity, or if a word has many products `hidden`: unrolled loops only take longer to compile."""
    return hidden if vectors > 1 else inline(lambda end: end)


def _score_loop(block: Block, count: int) -> Any:
    vectors, (zeros, add, store, _) = block.vectors, sums_of(block.bits, count, block.vectors)
    load, piece, half = block.codes.load, 32 // vectors, 128 if vectors == 1 else 0
    end_of = _end_of_words(vectors)

    @inline
    def scores(item, r, first, stop):  # type: ignore[no-untyped-def]
        """Compute scores of `count` rows from `r` on with the keys of runs first <= i < stop, without K's scales."""
        op, s, by = load_i64(item + ITEM.op), line_of(item, r), _query_scales(item) + r * 4
        k_cache, v_cache = load_i64(op + ATTENTION.k_cache), load_i64(op + ATTENTION.v_cache)
        stride, size = load_i64(op + ATTENTION.block_size) * 2, load_i64(op + ATTENTION.head_pad) * 2
        q = _queries(item) + r * size
        for i in range(first, stop, vectors):
            j = min(i + vectors, stop) - 1
            run, last = _runs(item) + i * RUN_BYTES, _runs(item) + j * RUN_BYTES
            left, right = k_cache + load_i64(run + _RUN.keys), k_cache + load_i64(last + _RUN.keys)
            ahead, ahead_right = load_i64(run + _RUN.next_values), load_i64(last + _RUN.next_values)
            sums, again, again_right = zeros(), load_i64(run + _RUN.values), load_i64(last + _RUN.values)
            for d in range(0, size, piece):  # elements after the head are multiplied by zeros of the query
                _fetch(k_cache + ahead + d * 8, k_cache + ahead_right + d * 8 + half)
                if r == 0:
                    _fetch(v_cache + again + d * 8, v_cache + again_right + d * 8 + half)
                for word in range(q + d, end_of(q + d + piece), 4):
                    sums = add(sums, word, size, load(left), load(right))
                    left, right = left + stride, right + stride
            store(sums, s + i * RUN * 4, (j - i) * RUN * 4, LINE, by, 4)

    return scores


def _value_loop(block: Block, count: int) -> Any:
    vectors, (zeros, add, _, accumulate) = block.vectors, sums_of(block.bits, count, block.vectors)
    load, piece, end_of = block.codes.load, 32 // vectors, _end_of_words(vectors)

    @inline
    def values(item, r, first, stop):  # type: ignore[no-untyped-def]
        """Add the weighted values of runs first <= i < stop to `count` rows from `r` on."""
        op, w = load_i64(item + ITEM.op), line_of(item, r)
        v_cache, head_pad = load_i64(op + ATTENTION.v_cache), load_i64(op + ATTENTION.head_pad)
        k_cache, size = load_i64(op + ATTENTION.k_cache), state_bytes(head_pad)
        to = load_i64(item + ITEM.states) + VALUES + r * size
        for d in range(0, head_pad, 16 * vectors):
            to_right = min(16 * (vectors - 1), head_pad - 16 - d)
            sums = zeros()
            for i in range(first, stop):
                run = _runs(item) + i * RUN_BYTES
                v, ahead = v_cache + load_i64(run + _RUN.values) + d * 2, load_i64(run + _RUN.next_values) + d * 16
                for part in range(0, RUN * 2, piece):
                    _fetch(v_cache + ahead, v_cache + ahead + 128)
                    if r == 0:
                        _fetch(k_cache + ahead, k_cache + ahead + 128)
                    ahead += 256
                    begin = w + i * RUN * 2 + part
                    for word in range(begin, end_of(begin + piece), 4):
                        sums = add(sums, word, LINE, load(v), load(v + to_right * 2))
                        v += head_pad * 2
            accumulate(sums, to + d * 4, to_right * 4, size, w + WEIGHTS_SCALE, LINE)

    return values


def _at_least(count: int, exact: Any, fewer: Any) -> Any:
    @inline
    def run(item, r, first, stop):  # type: ignore[no-untyped-def]
        if load_i64(item + ITEM.rows) - r >= count:
            exact(item, r, first, stop)
        else:
            fewer(item, r, first, stop)

    return run


def _by_rows(loop: Any, block: Block) -> Any:
    """Return a loop over all rows that see a key of the chunk at `base`: as many at a time as there are sums for."""
    step, some = block.rows, loop(block, 1)
    for count in range(2, step + 1):
        some = _at_least(count, loop(block, count), some)

    @inline
    def run(item, base, first, stop):  # type: ignore[no-untyped-def]
        for r in range(0, load_i64(item + ITEM.rows), step):
            if sees(item, r, step, base):
                some(item, r, first, stop)

    return run


def _attention(block: Block) -> Any:
    scores, values = _by_rows(_score_loop, block), _by_rows(_value_loop, block)
    soften, unit = soften_rows(softmax(IN_FLOAT32, is_scaled=True)), block.codes.unit
    limit = float(_most(block.codes.largest, CHUNK))

    @inline
    def attend(item, begin, end):  # type: ignore[no-untyped-def]
        head, next_key = load_i64(item + ITEM.kv_head), load_i64(item + ITEM.next_key)
        _go_on(item, head, begin // CHUNK * CHUNK, begin, end)
        for base in range(begin // CHUNK * CHUNK, end, CHUNK):
            first, stop = max(0, begin - base) // RUN, (min(CHUNK, end - base) + RUN - 1) // RUN
            if base + CHUNK < end:
                _go_on(item, head, base + CHUNK, begin, end)
            else:
                after = end_key(item, load_i64(item + ITEM.tokens) - 1)
                _go_on(item, load_i64(item + ITEM.next_head), next_key // CHUNK * CHUNK, next_key, after)
            _gather_scales(item, first, stop)
            scores(item, base, first, stop)
            soften(item, base)
            for i in range(hidden(load_i64(item + ITEM.rows))):
                narrow_weights(line_of(item, i), limit, unit)
            values(item, base, first, stop)

    return attention_items(_prepare(block.codes), attend)


attention_i8_avx2 = made_kernel("attention_i8_avx2", _attention(Block(256, 4, 1, INT8)))
attention_i8_avx512 = made_kernel("attention_i8_avx512", _attention(Block(512, 8, 2, INT8)))
attention_e4m3_avx512 = made_kernel("attention_e4m3_avx512", _attention(Block(512, 8, 2, FLOAT8)))
