"""Attention of encoders: each token attends to all tokens of its text, before and after it.

K and V of a text lie in neighbouring blocks, as rope.py writes them, from the beginning of its first block on. A row's
lanes and runs of keys follow from its text alone, and so does its result. An entry of the step is up to `tile_tokens`
query tokens of one text; an entry and one kv head make an item. Scores may have a bias by distance for each head
(MPNet), or terms by distance and content where each head has its own keys (DeBERTa), and tokens further away than
`reach` may be excluded (ModernBERT's local layers).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...device.attention_layout import CHUNK, DISTANCE_COLUMNS, DISTANCE_ROWS, DISTANCE_SCORES, ITEM_BYTES, VALUES
from ..isa import avx512, simd
from ..isa.jit import inline, made_kernel, share_begin
from ..isa.memory import fetch_add, load_f32, load_i32, load_i64, store_f32, store_i64
from ..records import BOTH_SIDES, BOTH_SIDES_BYTES, STEP, offsets
from . import cache_elements
from .cache_elements import FLOAT32, CacheCell
from .items import COUNTER_BYTES
from .lane_rows import eight_row_loops, four_row_loops
from .softmax import IN_FLOAT32, LINE, softmax
from .state import begin_state, finish_row, state_bytes


class TextItemRecord(NamedTuple):
    """One item, stored at the beginning of its worker's scratch."""

    op: int  # operands of the core
    keys: int  # the kv head's K and V in the text's first block
    values: int
    first_head: int  # local query heads that the kv head serves
    group: int  # number of these query heads
    row: int  # first token's row in the step
    rows: int  # tokens * group: row r is token r // group, head first_head + r % group
    tokens: int
    position: int  # of the first token in its text
    length: int  # of the text
    states: int  # one for each row, rounded up to sixteen
    scores: int  # of four rows, or eight


ITEM = offsets(TextItemRecord)


@inline
def _set_item(op, step, kv_head, entry, at):  # type: ignore[no-untyped-def]
    """Write an item's record to `at`; returns the number of its query heads."""
    groups = load_i64(op + BOTH_SIDES.groups) + kv_head * 8
    first_head, seq = load_i32(groups), load_i32(load_i64(step + STEP.tile_seq) + entry * 4)
    group, row = load_i32(groups + 4) - first_head, load_i32(load_i64(step + STEP.tile_row) + entry * 4)
    begin = load_i32(load_i64(step + STEP.query_start) + seq * 4)
    end = load_i32(load_i64(step + STEP.query_start) + (seq + 1) * 4)
    tokens = min(load_i64(op + BOTH_SIDES.tile_tokens), end - row)
    block = load_i32(load_i64(step + STEP.block_tables) + seq * load_i64(step + STEP.table_width) * 4)
    cell = block * load_i64(op + BOTH_SIDES.block_stride) + kv_head * load_i64(op + BOTH_SIDES.block_bytes)
    store_i64(at + ITEM.op, op)
    store_i64(at + ITEM.keys, load_i64(op + BOTH_SIDES.k_cache) + cell)
    store_i64(at + ITEM.values, load_i64(op + BOTH_SIDES.v_cache) + cell)
    store_i64(at + ITEM.first_head, first_head)
    store_i64(at + ITEM.group, group)
    store_i64(at + ITEM.row, row)
    store_i64(at + ITEM.rows, tokens * group)
    store_i64(at + ITEM.tokens, tokens)
    store_i64(at + ITEM.position, row - begin)
    store_i64(at + ITEM.length, end - begin)
    store_i64(at + ITEM.states, at + ITEM_BYTES)
    size = load_i64(op + BOTH_SIDES.state_rows) * state_bytes(load_i64(op + BOTH_SIDES.head_pad))
    store_i64(at + ITEM.scores, at + ITEM_BYTES + size)
    return group


@inline
def _first_key(position, reach):  # type: ignore[no-untyped-def]
    """Return the first key that a query at `position` sees. A reach of 0 means all keys."""
    if reach == 0:
        return 0
    return max(0, position - reach)


@inline
def _end_key(position, reach, length):  # type: ignore[no-untyped-def]
    """Return the end of the keys that a query at `position` sees."""
    if reach == 0:
        return length
    return min(length, position + reach + 1)


@inline
def _query(item, r):  # type: ignore[no-untyped-def]
    """Return the address of row `r`'s query."""
    op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
    head = load_i64(item + ITEM.first_head) + r % group
    at = (load_i64(item + ITEM.row) + r // group) * load_i64(op + BOTH_SIDES.ldc)
    return load_i64(op + BOTH_SIDES.qkv) + (at + head * load_i64(op + BOTH_SIDES.head_dim)) * 4


@inline
def _add_bias(item, r, scores, base, width):  # type: ignore[no-untyped-def]
    """Add the bias of each distance to row `r`'s scores of the keys from `base` on."""
    op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
    bias = load_i64(op + BOTH_SIDES.bias)
    if bias != 0:
        head = load_i64(item + ITEM.first_head) + r % group
        distance = base - load_i64(item + ITEM.position) - r // group
        middle = head * load_i64(op + BOTH_SIDES.bias_stride) + load_i64(op + BOTH_SIDES.bias_middle)
        at = bias + (middle + distance) * 4
        for t in range(0, width, 16):
            simd.store(scores + t * 4, simd.add(simd.load(scores + t * 4), simd.load(at + t * 4)))


def _distance_terms(scores: Any) -> Any:
    """Return functions that score a run's keys with rows of their distances, and add both terms to a row's scores."""
    by_distance, _ = four_row_loops(FLOAT32)

    @inline
    def score_keys(item, base, width, k, stride):  # type: ignore[no-untyped-def]
        """Score the keys from `base` on, at `k`, with the row of each distance to the item's queries."""
        op, size = load_i64(item + ITEM.op), load_i64(load_i64(item + ITEM.op) + BOTH_SIDES.head_dim) * 4
        tokens, columns = load_i64(item + ITEM.tokens), load_i64(op + BOTH_SIDES.bias_stride)
        lowest = load_i64(op + BOTH_SIDES.bias_middle) + base - load_i64(item + ITEM.position) - tokens + 1
        q = load_i64(op + BOTH_SIDES.distance_queries) + (load_i64(item + ITEM.first_head) * columns + lowest) * size
        to = load_i64(item + ITEM.scores) + DISTANCE_ROWS
        for n in range(0, tokens + width - 1, 4):
            q0, s = q + n * size, to + n * LINE
            q1, q2, q3, s1, s2, s3 = q0 + size, q0 + 2 * size, q0 + 3 * size, s + LINE, s + 2 * LINE, s + 3 * LINE
            scores(q0, q1, q2, q3, k, stride, s, s1, s2, s3, size // 4, width)

    @inline
    def add(item, r, r3, s, q0, q1, q2, q3, base, width):  # type: ignore[no-untyped-def]
        """Add the terms of rows `r` to `r3` to their scores, which begin at `s`."""
        op = load_i64(item + ITEM.op)
        head_dim, columns = load_i64(op + BOTH_SIDES.head_dim), load_i64(op + BOTH_SIDES.bias_stride)
        lowest = load_i64(op + BOTH_SIDES.bias_middle) + base - load_i64(item + ITEM.position) - r3
        k = load_i64(op + BOTH_SIDES.distance_keys)
        k += (load_i64(item + ITEM.first_head) * head_dim * columns + lowest) * 4
        c, wide = s + DISTANCE_SCORES, DISTANCE_COLUMNS * 4
        by_distance(q0, q1, q2, q3, k, columns * 4, c, c + wide, c + 2 * wide, c + 3 * wide, head_dim, width + 16)
        for i in range(r, r3 + 1):
            row, at = s + (i - r) * LINE, c + (i - r) * wide + (r3 - i) * 4
            of_keys = s + DISTANCE_ROWS + (load_i64(item + ITEM.tokens) - 1 - i) * LINE
            for t in range(width):
                terms = load_f32(at + t * 4) + load_f32(of_keys + t * (LINE + 4))
                store_f32(row + t * 4, load_f32(row + t * 4) + terms)

    return score_keys, add


def _products(cell: CacheCell) -> Any:
    """Return the products of `count` rows from `r` on, eight or up to four, with a run of keys and of values."""
    (scores, values), (scores_of_eight, values_of_eight) = four_row_loops(cell), eight_row_loops(cell)
    score_keys, add_terms = _distance_terms(scores)

    @inline
    def score(item, r, count, base, width, k, stride):  # type: ignore[no-untyped-def]
        """Compute scores of the keys from `base` on; after an item's last row, that one again."""
        op, last, s = load_i64(item + ITEM.op), load_i64(item + ITEM.rows) - 1, load_i64(item + ITEM.scores)
        head_dim, r1, r2, r3 = load_i64(op + BOTH_SIDES.head_dim), min(r + 1, last), min(r + 2, last), min(r + 3, last)
        q0, q1, q2, q3 = _query(item, r), _query(item, r1), _query(item, r2), _query(item, r3)
        if count == 8:
            q4, q5, q6, q7 = _query(item, r + 4), _query(item, r + 5), _query(item, r + 6), _query(item, r + 7)
            scores_of_eight((q0, q1, q2, q3, q4, q5, q6, q7), k, stride, s, head_dim, width)
            return
        scores(q0, q1, q2, q3, k, stride, s, s + LINE, s + 2 * LINE, s + 3 * LINE, head_dim, width)
        if load_i64(op + BOTH_SIDES.distance_keys) != 0:
            add_terms(item, r, r3, s, q0, q1, q2, q3, base, width)

    @inline
    def add(item, r, count, v, w, width):  # type: ignore[no-untyped-def]
        """Add `width` values from `v` on, times the rows' weights from `w` on."""
        head_pad = load_i64(load_i64(item + ITEM.op) + BOTH_SIDES.head_pad)
        size, others = state_bytes(head_pad), min(3, load_i64(item + ITEM.rows) - 1 - r)
        to = load_i64(item + ITEM.states) + VALUES + r * size
        if count == 8:
            values_of_eight(v, w, to, size, head_pad, width)
            return
        w1, w2, w3 = w + min(1, others) * LINE, w + min(2, others) * LINE, w + others * LINE
        to1, to2, to3 = to + min(1, others) * size, to + min(2, others) * size, to + others * size
        values(v, w, w1, w2, w3, to, to1, to2, to3, head_pad, width)

    return score_keys, score, add


def _run_loop(cell: CacheCell) -> Any:
    score_keys, score, add = _products(cell)
    softmax_row, size = softmax(IN_FLOAT32, is_scaled=False), cell.size

    @inline
    def one_row(item, r, s, base, width):  # type: ignore[no-untyped-def]
        """Turn one row's scores into weights."""
        op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
        reach, head_pad = load_i64(op + BOTH_SIDES.reach), load_i64(op + BOTH_SIDES.head_pad)
        position = load_i64(item + ITEM.position) + r // group
        first, end = _first_key(position, reach), _end_key(position, reach, load_i64(item + ITEM.length))
        _add_bias(item, r, s, base, width)
        state = load_i64(item + ITEM.states) + r * state_bytes(head_pad)
        softmax_row(state, s, s, first - base, min(end - base, width), 0, head_pad, 0.0, 0.0, 0)

    @inline
    def run(item, base, width, k, v):  # type: ignore[no-untyped-def]
        """Attend with all rows to one run of `width` keys from `base` on, at `k` and `v`."""
        op, group, rows = load_i64(item + ITEM.op), load_i64(item + ITEM.group), load_i64(item + ITEM.rows)
        row_bytes, s = load_i64(op + BOTH_SIDES.head_pad) * size, load_i64(item + ITEM.scores)
        stride, reach = load_i64(op + BOTH_SIDES.block_size) * size, load_i64(op + BOTH_SIDES.reach)
        position, length = load_i64(item + ITEM.position), load_i64(item + ITEM.length)
        has_terms = load_i64(op + BOTH_SIDES.distance_keys) != 0
        if has_terms:
            score_keys(item, base, width, k, stride)
        r = 0
        while r < rows:
            count = 8 if avx512.has_registers() and r + 8 <= rows and not has_terms else 4
            after = min(r + count, rows)
            begin = max(0, _first_key(position + r // group, reach) - base)
            end = min(width, _end_key(position + (after - 1) // group, reach, length) - base)
            if begin < min(end, width):
                score(item, r, count, base, width, k, stride)
                for i in range(r, after):
                    one_row(item, i, s + (i - r) * LINE, base, width)
                # Slots after the last key may hold values of another text. They are never read, whatever their weight.
                add(item, r, count, v + begin * row_bytes, s + begin * 4, end - begin)
            r += count

    return run


@inline
def _finish(item):  # type: ignore[no-untyped-def]
    """Write the states to float32 rows of the output."""
    op, group, row = load_i64(item + ITEM.op), load_i64(item + ITEM.group), load_i64(item + ITEM.row)
    head_dim, width = load_i64(op + BOTH_SIDES.head_dim), load_i64(op + BOTH_SIDES.output_width)
    size, states = state_bytes(load_i64(op + BOTH_SIDES.head_pad)), load_i64(item + ITEM.states)
    to = load_i64(op + BOTH_SIDES.output) + (row * width + load_i64(item + ITEM.first_head) * head_dim) * 4
    for _ in range(load_i64(item + ITEM.tokens)):
        for head in range(group):
            finish_row(to + head * head_dim * 4, states + head * size, head_dim)
        to, states = to + width * 4, states + group * size


def _attend(cell: CacheCell) -> Any:
    run, cell_size = _run_loop(cell), cell.size

    @inline
    def attend(item):  # type: ignore[no-untyped-def]
        """Attend in runs of up to CHUNK keys; a run ends where its block ends."""
        op, length = load_i64(item + ITEM.op), load_i64(item + ITEM.length)
        head_pad, block_size = load_i64(op + BOTH_SIDES.head_pad), load_i64(op + BOTH_SIDES.block_size)
        next_block = load_i64(op + BOTH_SIDES.block_stride)
        reach, position = load_i64(op + BOTH_SIDES.reach), load_i64(item + ITEM.position)
        for r in range((load_i64(item + ITEM.rows) + 15) // 16 * 16):
            begin_state(load_i64(item + ITEM.states) + r * state_bytes(head_pad), head_pad)
        t = _first_key(position, reach) // CHUNK * CHUNK
        end = _end_key(position + load_i64(item + ITEM.tokens) - 1, reach, length)
        while t < end:
            block, offset = t // block_size, t % block_size
            stop = min(t // CHUNK * CHUNK + CHUNK, (block + 1) * block_size)
            width = min(stop - t, (length - t + 15) // 16 * 16)
            k = load_i64(item + ITEM.keys) + block * next_block + offset * cell_size
            v = load_i64(item + ITEM.values) + block * next_block + offset * head_pad * cell_size
            run(item, t, width, k, v)
            t = stop
        _finish(item)

    return attend


def _items(attend: Any) -> Any:
    """Return a kernel's loop: a worker takes the items of its share from the last on, then helps the others."""

    @inline
    def loop(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        kv_heads = load_i64(operands + BOTH_SIDES.kv_heads)
        pairs = kv_heads * cores
        at = load_i64(operands + BOTH_SIDES.scratch) + worker * load_i64(operands + BOTH_SIDES.scratch_stride)
        items = load_i64(step + STEP.num_tiles) * pairs
        for turn in range(workers):
            owner = (worker + turn) % workers
            counter = load_i64(step + STEP.counters) + owner * COUNTER_BYTES
            first, last = share_begin(items, owner, workers), share_begin(items, owner + 1, workers) - 1
            index = last - fetch_add(counter, 1)
            while index >= first:
                entry, pair = index // pairs, index % pairs
                op = operands + pair // kv_heads * BOTH_SIDES_BYTES
                if _set_item(op, step, pair % kv_heads, entry, at) > 0:
                    attend(at)
                index = last - fetch_add(counter, 1)

    return loop


attention_both_sides_bf16 = made_kernel("attention_both_sides_bf16", _items(_attend(cache_elements.BFLOAT16)))
attention_both_sides_f32 = made_kernel("attention_both_sides_f32", _items(_attend(cache_elements.FLOAT32)))
