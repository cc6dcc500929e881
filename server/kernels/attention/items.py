"""Items of attention, the same for every kernel: which worker computes which queries against which keys.

An entry of the step is up to `tile_tokens` consecutive query tokens of one sequence, with all their keys or with one
partition of them (state.py); an entry and one kv head make an item. A worker takes its share of the items from the
last to the first, because the last item's tokens are still in its cache from the instruction before. Then it helps the
other workers, because item sizes differ too much for equal shares; it does not help where the whole step is divided by
rows. Several items may share a query: the worker that finishes the last of them merges their states.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...device.attention_layout import ITEM_BYTES, PARTITION
from ..isa.jit import inline, share_begin
from ..isa.memory import (
    fetch_add,
    hidden,
    load_f32,
    load_i32,
    load_i64,
    store_i64,
    store_release,
)
from ..records import ATTENTION, ATTENTION_BYTES, STEP, offsets
from .state import (
    add_sink,
    begin_state,
    copy_state,
    finish_row,
    first_key,
    merge_state,
    state_bytes,
)


class ItemRecord(NamedTuple):
    """One item, stored at the beginning of its worker's scratch."""

    op: int  # operands of the core
    table: int  # int32, the sequence's blocks
    kv_head: int
    first_head: int  # local query heads that the kv head serves
    group: int  # number of these query heads
    row: int  # first token's row in the step
    tokens: int
    rows: int  # tokens * group: row r is token r // group, head first_head + r % group
    position: int  # of the first token
    states: int  # of the current partition, one for each row, rounded up to sixteen
    totals: int  # of all partitions
    work: int  # working memory of the kernel
    ends: int  # of the first token, see StepRecord; 0: tokens see no key behind them
    next_key: int  # what the worker probably reads after the current partition; the end of all keys if not known
    next_head: int


ITEM = offsets(ItemRecord)
COUNTER_BYTES = 64  # a cache line for each worker's count of items taken from its share


@inline
def _set_item(op, step, kv_head, entry, at):  # type: ignore[no-untyped-def]
    """Write an item's record to `at`; returns the number of its query heads."""
    groups = load_i64(op + ATTENTION.groups) + kv_head * 8
    first_head = load_i32(groups)
    group = load_i32(groups + 4) - first_head
    seq = load_i32(load_i64(step + STEP.tile_seq) + entry * 4)
    row = load_i32(load_i64(step + STEP.tile_row) + entry * 4)
    seq_end = load_i32(load_i64(step + STEP.query_start) + (seq + 1) * 4)
    tokens = min(load_i64(op + ATTENTION.tile_tokens), seq_end - row)
    size = load_i64(op + ATTENTION.state_rows) * state_bytes(load_i64(op + ATTENTION.head_pad))
    store_i64(at + ITEM.op, op)
    tables = load_i64(op + ATTENTION.kv_group) * load_i64(step + STEP.tables_stride)
    table = load_i64(step + STEP.block_tables) + tables + seq * load_i64(step + STEP.table_width) * 4
    store_i64(at + ITEM.table, table)
    store_i64(at + ITEM.kv_head, kv_head)
    store_i64(at + ITEM.first_head, first_head)
    store_i64(at + ITEM.group, group)
    store_i64(at + ITEM.row, row)
    store_i64(at + ITEM.tokens, tokens)
    store_i64(at + ITEM.rows, tokens * group)
    store_i64(at + ITEM.position, load_i32(load_i64(step + STEP.positions) + row * 4))
    store_i64(at + ITEM.states, at + ITEM_BYTES)
    store_i64(at + ITEM.totals, at + ITEM_BYTES + size)
    store_i64(at + ITEM.work, at + ITEM_BYTES + 2 * size)
    ends = load_i64(step + STEP.ends)
    if ends != 0:
        ends = (ends + row * 4) * load_i64(op + ATTENTION.sees_ahead)
    store_i64(at + ITEM.ends, ends)
    return group


@inline
def end_key(item, token):  # type: ignore[no-untyped-def]
    """Return the end of the keys that token `token` of the item sees; it never decreases from token to token."""
    ends = load_i64(item + ITEM.ends)
    if ends != 0:
        return load_i32(ends + token * 4)
    return load_i64(item + ITEM.position) + token + 1


@inline
def _merge(item, partition, parts):  # type: ignore[no-untyped-def]
    """Merge a partition's states, at `parts`, into the totals of rows that see its keys; copy a row's first state."""
    op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
    head_pad, window = load_i64(op + ATTENTION.head_pad), load_i64(op + ATTENTION.window)
    size, totals = state_bytes(head_pad), load_i64(item + ITEM.totals)
    for r in range(load_i64(item + ITEM.rows)):
        position = load_i64(item + ITEM.position) + r // group
        first = first_key(position, window) // PARTITION
        if first == partition:
            copy_state(totals + r * size, parts + r * size, head_pad)
        elif first < partition and end_key(item, r // group) > partition * PARTITION:
            merge_state(totals + r * size, parts + r * size, head_pad)


@inline
def _finish(item, totals):  # type: ignore[no-untyped-def]
    """Write the final states to float32 rows of the output."""
    op, group, row = load_i64(item + ITEM.op), load_i64(item + ITEM.group), load_i64(item + ITEM.row)
    head_dim, width = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.output_width)
    size = state_bytes(load_i64(op + ATTENTION.head_pad))
    first_head, sinks = load_i64(item + ITEM.first_head), load_i64(op + ATTENTION.sinks)
    to = load_i64(op + ATTENTION.output) + (row * width + first_head * head_dim) * 4
    for _ in range(load_i64(item + ITEM.tokens)):
        for head in range(group):
            if sinks != 0:
                add_sink(totals + head * size, load_f32(sinks + (first_head + head) * 4), head_dim)
            finish_row(to + head * head_dim * 4, totals + head * size, head_dim)
        to, totals = to + width * 4, totals + group * size


@inline
def _leave_part(item, slot):  # type: ignore[no-untyped-def]
    """Copy the current states to the slot where the worker that merges the query's items reads them."""
    op = load_i64(item + ITEM.op)
    head_pad, states = load_i64(op + ATTENTION.head_pad), load_i64(item + ITEM.states)
    for r in range(load_i64(item + ITEM.rows)):
        copy_state(slot + r * state_bytes(head_pad), states + r * state_bytes(head_pad), head_pad)


@inline
def _merge_parts(item, split, pair, pairs):  # type: ignore[no-untyped-def]
    """Copy the current states to their slot; if this was the query's last item, merge all and return True."""
    op, own, count = load_i64(item + ITEM.op), load_i32(split), load_i32(split + 8)
    slot = load_i32(split + 4) * pairs + pair
    slot_bytes = load_i64(op + ATTENTION.max_group) * state_bytes(load_i64(op + ATTENTION.head_pad))
    parts, stride = load_i64(op + ATTENTION.partials) + slot * slot_bytes, pairs * slot_bytes
    _leave_part(item, parts + own * stride)
    arrivals = load_i64(op + ATTENTION.arrivals) + slot * 8
    if fetch_add(arrivals, 1) != count - 1:
        return False
    store_release(arrivals, 0)
    for p in range(count):
        _merge(item, p, parts + p * stride)
    return True


@inline
def slope_of(item, head):  # type: ignore[no-untyped-def]
    """Return what scores of query head `head` of the item lose by token of distance."""
    slopes = load_i64(load_i64(item + ITEM.op) + ATTENTION.slopes)
    if slopes == 0:
        return 0.0
    return load_f32(slopes + (load_i64(item + ITEM.first_head) + head) * 4)


@inline
def _expect(item, partition, first, last, is_part):  # type: ignore[no-untyped-def]
    """Note what follows: the next partition, or the item before this one, which has the kv head before."""
    end, head = end_key(item, load_i64(item + ITEM.tokens) - 1), load_i64(item + ITEM.kv_head)
    key = (partition + 1) * PARTITION
    if partition == last and head > 0:
        window = load_i64(load_i64(item + ITEM.op) + ATTENTION.window)
        head, key = head - 1, max(first * PARTITION, first_key(load_i64(item + ITEM.position), window))
    elif partition == last:
        head, key = load_i64(load_i64(item + ITEM.op) + ATTENTION.kv_heads) - 1, end
        if is_part and partition > 0:
            key = (partition - 1) * PARTITION
    store_i64(item + ITEM.next_key, min(key, end))
    store_i64(item + ITEM.next_head, head)


def _do_item(attend: Any) -> Any:
    """Return the function that computes one item; `attend` is compiled into it once."""

    @inline
    def attend_partition(item, partition):  # type: ignore[no-untyped-def]
        op, begin = load_i64(item + ITEM.op), partition * PARTITION
        position, end = load_i64(item + ITEM.position), end_key(item, load_i64(item + ITEM.tokens) - 1)
        head_pad, states = load_i64(op + ATTENTION.head_pad), load_i64(item + ITEM.states)
        for r in range((load_i64(item + ITEM.rows) + 15) // 16 * 16):
            begin_state(states + r * state_bytes(head_pad), head_pad)
        first = max(begin, first_key(position, load_i64(op + ATTENTION.window)))
        attend(item, first, min(begin + PARTITION, end))

    @inline
    def do_item(item, split, pair, pairs):  # type: ignore[no-untyped-def]
        """Compute an item.

        `split` is the partition or -1 for all, its slot, and the query's partitions; `pair` the core and kv head.
        """
        position, window = load_i64(item + ITEM.position), load_i64(load_i64(item + ITEM.op) + ATTENTION.window)
        first = first_key(position, window) // PARTITION
        last = (end_key(item, load_i64(item + ITEM.tokens) - 1) - 1) // PARTITION
        is_part, states = load_i32(split) >= 0, load_i64(item + ITEM.states)
        if is_part:
            first = last = load_i32(split)
        for partition in range(first, last + 1):
            _expect(item, partition, first, last, is_part)
            attend_partition(item, partition)
            if hidden(last) > first:
                _merge(item, partition, states)
        if first < last:
            _finish(item, load_i64(item + ITEM.totals))
        elif not is_part:
            _finish(item, states)
        elif _merge_parts(item, split, pair, pairs):
            _finish(item, load_i64(item + ITEM.totals))

    return do_item


@inline
def _first_item(entries, pairs, worker, workers):  # type: ignore[no-untyped-def]
    """Return the first item of a worker's share: the first of an entry if the whole step is divided by rows."""
    if workers < 0:
        return share_begin(entries, worker, workers) * pairs
    return share_begin(entries * pairs, worker, workers)


def attention_items(prepare: Any, attend: Any) -> Any:
    """Return the loop of a kernel `(operands, cores, step, worker, workers)`.

    `prepare(item)` gets the queries ready. `attend(item, begin, end)` adds the keys begin <= t < end to the states; it
    may read further keys, up to the kernel's own step.
    """
    do_item = _do_item(attend)

    @inline
    def run(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        step += load_i64(operands + ATTENTION.record)
        kv_heads = load_i64(operands + ATTENTION.kv_heads)
        pairs = kv_heads * cores
        at = load_i64(operands + ATTENTION.scratch) + worker * load_i64(operands + ATTENTION.scratch_stride)
        entries = load_i64(step + STEP.num_tiles)
        for turn in range(max(1, workers)):
            owner = (worker + turn) % abs(workers)
            counter = load_i64(step + STEP.counters) + owner * COUNTER_BYTES
            first = _first_item(entries, pairs, owner, workers)
            last = _first_item(entries, pairs, owner + 1, workers) - 1
            index = last - fetch_add(counter, 1)
            while index >= first:
                entry, pair = index // pairs, index % pairs
                group = _set_item(operands + pair // kv_heads * ATTENTION_BYTES, step, pair % kv_heads, entry, at)
                split = load_i64(step + STEP.tile_split) + entry * 12
                if group > 0:
                    prepare(at)
                    do_item(at, split, pair, pairs)
                index = last - fetch_add(counter, 1)

    return run
