"""Paged attention on lanes with online softmax: prefill chunks and decode in one kernel, grouped heads, sliding window.

An item (items.py) has its rows taken four at a time, so that a K or V vector read from the cache serves four.
Keys are taken in runs that end where a block or CHUNK tokens of the context end, each row applying its own causal
limits, so a row's result does not depend on how its prompt was chunked or who shares its item.
"""

from __future__ import annotations

from typing import Any

from server.device.attention_layout import CHUNK
from server.kernels.attention import cache_elements
from server.kernels.attention.cache_elements import CacheCell
from server.kernels.attention.items import ITEM, attention_items
from server.kernels.attention.lane_rows import LINE, four_row_loops, softmax
from server.kernels.attention.state import first_key, state_bytes
from server.kernels.isa.jit import inline, kernel
from server.kernels.isa.memory import load_f32, load_i32, load_i64, prefetch_to_l2
from server.kernels.records import ATTENTION


@inline
def _prepare(item):  # type: ignore[no-untyped-def]
    """Queries are read where the matmul left them."""


@inline
def _query(item, r):  # type: ignore[no-untyped-def]
    """Address of row `r`'s query."""
    op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
    head = load_i64(item + ITEM.first_head) + r % group
    token = load_i64(item + ITEM.row) + r // group
    at = token * load_i64(op + ATTENTION.ldc) + head * load_i64(op + ATTENTION.head_dim)
    return load_i64(op + ATTENTION.qkv) + at * 4


def _run_loop(cell: CacheCell) -> Any:
    scores, values = four_row_loops(cell)
    softmax_row, size = softmax(cell.is_scaled), cell.size

    @inline
    def run(item, base, offset, width, k, v):  # type: ignore[no-untyped-def]
        """All rows against `width` keys from `base` on, which lie `offset` tokens into the block at `k` and `v`."""
        op, group, rows = load_i64(item + ITEM.op), load_i64(item + ITEM.group), load_i64(item + ITEM.rows)
        head_dim, head_pad = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.head_pad)
        block_size, window = load_i64(op + ATTENTION.block_size), load_i64(op + ATTENTION.window)
        position, states = load_i64(item + ITEM.position), load_i64(item + ITEM.states)
        s, state_size, cap = load_i64(item + ITEM.work), state_bytes(head_pad), load_f32(op + ATTENTION.cap)
        scales = head_pad * block_size * size + offset * 4
        k_at, v_at = k + offset * size, v + offset * head_pad * size
        for r in range(0, rows, 4):
            # The last group of four repeats the last row where there are fewer; the copies' states are dropped.
            r1, r2, r3 = min(r + 1, rows - 1), min(r + 2, rows - 1), min(r + 3, rows - 1)
            p0, p1, p2, p3 = (
                position + r // group,
                position + r1 // group,
                position + r2 // group,
                position + r3 // group,
            )
            b0, end = first_key(p0, window) - base, min(width, p3 - base + 1)
            if end <= 0 or b0 >= width:
                continue
            q0, q1, q2, q3 = _query(item, r), _query(item, r1), _query(item, r2), _query(item, r3)
            scores(q0, q1, q2, q3, k_at, block_size * size, s, head_dim, width)
            state, b1 = states + r * state_size, first_key(p1, window) - base
            b2, b3 = first_key(p2, window) - base, first_key(p3, window) - base
            f0 = softmax_row(state, s, width, b0, p0 - base + 1, k + scales, v + scales, cap)
            f1 = softmax_row(state + state_size, s + LINE, width, b1, p1 - base + 1, k + scales, v + scales, cap)
            f2 = softmax_row(
                state + 2 * state_size, s + 2 * LINE, width, b2, p2 - base + 1, k + scales, v + scales, cap
            )
            f3 = softmax_row(
                state + 3 * state_size, s + 3 * LINE, width, b3, p3 - base + 1, k + scales, v + scales, cap
            )
            # Slots past the last query may hold another sequence's old values: never touched, not even times zero.
            values(v_at, s, state, state_size, head_pad, max(0, b0), end, f0, f1, f2, f3)

    return run


@inline
def _place(item, block):  # type: ignore[no-untyped-def]
    """Bytes from the cache's first block to the sequence's block `block`, of the item's kv head."""
    op = load_i64(item + ITEM.op)
    index = load_i32(load_i64(item + ITEM.table) + block * 4) * load_i64(op + ATTENTION.kv_heads)
    return (index + load_i64(item + ITEM.kv_head)) * load_i64(op + ATTENTION.block_bytes)


@inline
def _fetch(item, block):  # type: ignore[no-untyped-def]
    """Ask for a block that is read next: it lies anywhere, so that the host cannot foresee it."""
    op, at = load_i64(item + ITEM.op), _place(item, block)
    for line in range(at, at + load_i64(op + ATTENTION.block_bytes), 64):
        prefetch_to_l2(load_i64(op + ATTENTION.k_cache) + line)
        prefetch_to_l2(load_i64(op + ATTENTION.v_cache) + line)


def _attend(cell: CacheCell) -> Any:
    run = _run_loop(cell)

    @inline
    def attend(item, begin, end):  # type: ignore[no-untyped-def]
        op = load_i64(item + ITEM.op)
        block_size = load_i64(op + ATTENTION.block_size)
        t = max(begin // CHUNK * CHUNK, begin // block_size * block_size)
        while t < end:
            block = t // block_size
            stop = min(t // CHUNK * CHUNK + CHUNK, (block + 1) * block_size)
            at = _place(item, block)
            k, v = load_i64(op + ATTENTION.k_cache) + at, load_i64(op + ATTENTION.v_cache) + at
            if stop < end and stop % block_size == 0:
                _fetch(item, block + 1)
            run(item, t, t - block * block_size, stop - t, k, v)
            t = stop

    return attend


_bf16 = attention_items(_prepare, _attend(cache_elements.BFLOAT16))
_f32 = attention_items(_prepare, _attend(cache_elements.FLOAT32))
_i8 = attention_items(_prepare, _attend(cache_elements.INT8))
_e4m3 = attention_items(_prepare, _attend(cache_elements.FLOAT8))


@kernel
def attention_bf16(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Over a bfloat16 KV cache."""
    _bf16(operands, cores, step, worker, workers)


@kernel
def attention_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Over a float32 KV cache."""
    _f32(operands, cores, step, worker, workers)


@kernel
def attention_i8(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Over an int8 KV cache."""
    _i8(operands, cores, step, worker, workers)


@kernel
def attention_e4m3(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Over a float8 KV cache."""
    _e4m3(operands, cores, step, worker, workers)
