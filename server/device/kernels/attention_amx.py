"""Paged attention on the tile unit: scores and weighted values of sixteen rows at a time, softmax on lanes between.

Work items, rows, causal limits and the order of blocks are those of attention.py; a row's result depends on the row
alone. The bfloat16 cache lies in pairs, as weights do (rope.py writes it): K [head_dim/2][block][2], V
[block/2][head_dim][2]. It holds finite numbers only, so that what is masked is zero times something and stays zero.
"""

from __future__ import annotations

from server.device.kernels import amx, simd
from server.device.kernels.attention import first_key
from server.device.kernels.jit import inline, kernel
from server.device.kernels.memory import fetch_add, load_f32, load_i32, load_i64, store_f32
from server.device.kernels.records import ATTENTION, ATTENTION_BYTES, STEP

_LOWEST = -1e30  # the running maximum before the first key: finite, so that differences are never NaN
_MASKED = -2e30  # below every score, and below the lowest maximum
_FACTORS, _SUMS = 64, 128  # byte offsets behind the sixteen running maxima: this block's factors, sums by lane
_STATE = 128 + 1024  # bytes of maxima, factors and sums
_dot_0_4_6 = amx.dot_bf16(0, 4, 6)


def row_tile_bytes(head_dim: int, block_size: int) -> int:
    """Scratch of sixteen rows: state, queries (bf16), scores (f32), weights (bf16), accumulators (f32)."""
    return _STATE + 16 * (2 * head_dim + 4 * block_size + 2 * block_size + 4 * head_dim)


_tile_bytes = inline(row_tile_bytes)


@inline
def _parts(tile, head_dim, block_size):  # type: ignore[no-untyped-def]
    """Addresses of queries, scores, weights and accumulators in a row tile's scratch."""
    queries = tile + _STATE
    scores = queries + 32 * head_dim
    weights = scores + 64 * block_size
    return queries, scores, weights, weights + 32 * block_size


@inline
def _begin(op, tile, row, first_head, group, first, rows):  # type: ignore[no-untyped-def]
    """Gather queries `first`.. of the item's `rows` (token, head) rows; clear the state."""
    head_dim, block_size = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.block_size)
    queries, _, _, sums = _parts(tile, head_dim, block_size)
    simd.store(tile, simd.splat(_LOWEST))
    for r in range(16):
        simd.store(tile + _SUMS + r * 64, simd.splat(0.0))
    width, source = load_i64(op + ATTENTION.queries_width), load_i64(op + ATTENTION.queries)
    for r in range(16):
        at = min(first + r, rows - 1)  # rows beyond the last repeat it, and are dropped at the end
        q = source + ((row + at // group) * width + (first_head + at % group) * head_dim) * 2
        for d in range(0, head_dim, 16):
            simd.store_bf16(queries + (r * head_dim + d) * 2, simd.load_bf16(q + d * 2))
            simd.store(sums + (r * head_dim + d) * 4, simd.splat(0.0))


@inline
def _scores(queries, scores, k, head_dim, block_size):  # type: ignore[no-untyped-def]
    """scores[16, block] = queries @ K."""
    for t in range(0, block_size, 16):
        amx.zero0()
        for d in range(0, head_dim, 32):
            amx.load4(queries + d * 2, head_dim * 2)
            amx.load6(k + (d // 2 * block_size + t) * 4, block_size * 4)
            _dot_0_4_6()
        amx.store0(scores + t * 4, block_size * 4)


@inline
def _mask(scores, r, block_size, begin, end):  # type: ignore[no-untyped-def]
    """Scores of keys that row `r` does not see are the lowest: only begin <= t < end of the block count."""
    if begin > 0 or end < block_size:
        row = scores + r * block_size * 4
        for t in range(0, block_size, 16):
            score = simd.select_range(begin - t, end - t, simd.load(row + t * 4), simd.splat(_MASKED))
            simd.store(row + t * 4, score)


@inline
def _raise_maxima(tile, scores, count, block_size):  # type: ignore[no-untyped-def]
    """Running maxima of `count` rows, and the factors for what they summed before, sixteen at once."""
    before = simd.load(tile)
    for r in range(count):
        row = scores + r * block_size * 4
        high = simd.splat(load_f32(tile + r * 4))
        for t in range(0, block_size, 16):
            high = simd.maximum(high, simd.load(row + t * 4))
        store_f32(tile + r * 4, simd.max_lanes(high))
    simd.store(tile + _FACTORS, simd.exp(simd.sub(before, simd.load(tile))))


@inline
def _softmax(tile, scores, weights, r, block_size):  # type: ignore[no-untyped-def]
    """One row's scores to bfloat16 weights; its sums by lane grow. A masked key's weight is exactly zero."""
    row, out = scores + r * block_size * 4, weights + r * block_size * 2
    maximum, masked = simd.splat(load_f32(tile + r * 4)), simd.splat(_LOWEST)
    total = simd.mul(simd.load(tile + _SUMS + r * 64), simd.splat(load_f32(tile + _FACTORS + r * 4)))
    for t in range(0, block_size, 16):
        score = simd.load(row + t * 4)
        weight = simd.where_at_least(score, masked, simd.exp(simd.sub(score, maximum)))
        simd.store_bf16(out + t * 2, weight)
        total = simd.add(total, weight)
    simd.store(tile + _SUMS + r * 64, total)


@inline
def _rescale(tile, sums, r, head_dim):  # type: ignore[no-untyped-def]
    """What row `r` summed before, to its new maximum."""
    factor = load_f32(tile + _FACTORS + r * 4)
    if factor != 1.0:
        by = simd.splat(factor)
        for d in range(0, head_dim, 16):
            cell = sums + (r * head_dim + d) * 4
            simd.store(cell, simd.mul(simd.load(cell), by))


@inline
def _values(weights, sums, v, head_dim, block_size):  # type: ignore[no-untyped-def]
    """sums[16, head_dim] += weights @ V."""
    for d in range(0, head_dim, 16):
        amx.load0(sums + d * 4, head_dim * 4)
        for t in range(0, block_size, 32):
            amx.load4(weights + t * 2, block_size * 2)
            amx.load6(v + (t // 2 * head_dim + d) * 4, head_dim * 4)
            _dot_0_4_6()
        amx.store0(sums + d * 4, head_dim * 4)


@inline
def _block(op, tile, group, first, rows, position, base, k, v):  # type: ignore[no-untyped-def]
    """Sixteen rows against the block whose first token is at `base`; the item's first query is at `position`."""
    head_dim, block_size = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.block_size)
    window, count = load_i64(op + ATTENTION.window), min(16, rows - first)
    low, high = position + first // group, position + (first + count - 1) // group
    if high < base or first_key(low, window, base) >= block_size:
        return
    queries, scores, weights, sums = _parts(tile, head_dim, block_size)
    _scores(queries, scores, k, head_dim, block_size)
    for r in range(count):
        at = position + (first + r) // group
        _mask(scores, r, block_size, first_key(at, window, base), at - base + 1)
    _raise_maxima(tile, scores, count, block_size)
    for r in range(count):
        _softmax(tile, scores, weights, r, block_size)
        _rescale(tile, sums, r, head_dim)
    _values(weights, sums, v, head_dim, block_size)


@inline
def _finish(op, tile, row, first_head, group, first, rows):  # type: ignore[no-untyped-def]
    """Accumulators over sums, into float32 rows."""
    head_dim, block_size = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.block_size)
    width = load_i64(op + ATTENTION.output_width)
    _, _, _, sums = _parts(tile, head_dim, block_size)
    for r in range(min(16, rows - first)):
        at = first + r
        column = (first_head + at % group) * head_dim
        output = load_i64(op + ATTENTION.output) + ((row + at // group) * width + column) * 4
        total = simd.splat(simd.sum_lanes(simd.load(tile + _SUMS + r * 64)))
        for d in range(0, head_dim, 16):
            simd.store(output + d * 4, simd.div(simd.load(sums + (r * head_dim + d) * 4), total))


@inline
def _blocks(op, step, seq, kv_head, group, rows, position, tokens, at):  # type: ignore[no-untyped-def]
    """All blocks that the item's queries see, each for all its row tiles while it is in cache."""
    head_dim, block_size = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.block_size)
    table = load_i64(step + STEP.block_tables) + seq * load_i64(step + STEP.table_width) * 4
    first_block = first_key(position, load_i64(op + ATTENTION.window), 0) // block_size
    for b in range(first_block, (position + tokens - 1) // block_size + 1):
        index = load_i32(table + b * 4) * load_i64(op + ATTENTION.kv_heads) + kv_head
        offset = index * head_dim * block_size * 2
        k, v = load_i64(op + ATTENTION.k_cache) + offset, load_i64(op + ATTENTION.v_cache) + offset
        for first in range(0, rows, 16):
            tile = at + first // 16 * _tile_bytes(head_dim, block_size)
            _block(op, tile, group, first, rows, position, b * block_size, k, v)


@inline
def _item(op, step, kv_head, index, at):  # type: ignore[no-untyped-def]
    """One tile of queries with one kv head."""
    groups = load_i64(op + ATTENTION.groups) + kv_head * 8
    first_head = load_i32(groups)
    group = load_i32(groups + 4) - first_head
    if group == 0:
        return
    seq = load_i32(load_i64(step + STEP.tile_seq) + index * 4)
    row = load_i32(load_i64(step + STEP.tile_row) + index * 4)
    seq_end = load_i32(load_i64(step + STEP.query_start) + (seq + 1) * 4)
    tokens = min(load_i64(op + ATTENTION.tile_tokens), seq_end - row)
    position = load_i32(load_i64(step + STEP.positions) + row * 4)
    size = _tile_bytes(load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.block_size))
    rows = tokens * group
    for first in range(0, rows, 16):
        _begin(op, at + first // 16 * size, row, first_head, group, first, rows)
    _blocks(op, step, seq, kv_head, group, rows, position, tokens, at)
    for first in range(0, rows, 16):
        _finish(op, at + first // 16 * size, row, first_head, group, first, rows)


@kernel
def attention_amx(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Items are handed out by a shared counter, largest context first: their sizes differ too much for shares."""
    kv_heads = load_i64(operands + ATTENTION.kv_heads)
    per_tile = kv_heads * cores
    at = load_i64(operands + ATTENTION.scratch) + worker * load_i64(operands + ATTENTION.scratch_stride)
    counter, last = load_i64(step + STEP.counter), load_i64(step + STEP.num_tiles) * per_tile - 1
    amx.configure(16)
    item = last - fetch_add(counter, 1)
    while item >= 0:
        core, kv_head = item % per_tile // kv_heads, item % kv_heads
        _item(operands + core * ATTENTION_BYTES, step, kv_head, item // per_tile, at)
        item = last - fetch_add(counter, 1)
    amx.release()
