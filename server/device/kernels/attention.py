"""Paged attention with online softmax: prefill chunks and decode in one kernel, grouped heads, sliding window.

A tile is up to `tile_tokens` consecutive query tokens of one sequence; a tile and one kv head make one work item.
Its rows are (token, query head) pairs, four at a time so that a K or V vector read from the cache serves four.
Blocks are visited in order from the start of the context (or window), each row applying its own causal limits, so a
row's result does not depend on how its prompt was chunked or who shares its tile.
"""

from __future__ import annotations

from typing import Any

from server.device.kernels import simd
from server.device.kernels.attention_rows import STATE, begin_row, four_row_loops, row_stride, softmax_row
from server.device.kernels.cells import BFLOAT16, FLOAT32, Cell
from server.device.kernels.jit import inline, kernel
from server.device.kernels.memory import fetch_add, load_f32, load_i32, load_i64, store_f32
from server.device.kernels.records import ATTENTION, ATTENTION_BYTES, STEP


@inline
def first_key(position, window, base):  # type: ignore[no-untyped-def]
    """First key of the block at `base` that a query at `position` sees."""
    if window == 0:
        return 0
    return max(0, position - window + 1 - base)


def _block_loop(cell: Cell) -> Any:
    scores, values = four_row_loops(cell)

    @inline
    def block(op, q, group, rows, position, at, base, k, v):  # type: ignore[no-untyped-def]
        """All rows of the tile against the block whose first token is at `base`; the first query is at `position`."""
        head_dim, head_pad = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.head_pad)
        block_size, window = load_i64(op + ATTENTION.block_size), load_i64(op + ATTENTION.window)
        token_bytes, head_bytes = load_i64(op + ATTENTION.ldc) * 4, head_dim * 4
        stride = row_stride(head_pad, block_size)
        for r in range(0, rows, 4):
            # The last group of four repeats the last row where there are fewer; the copies are dropped at the end.
            r1, r2, r3 = min(r + 1, rows - 1), min(r + 2, rows - 1), min(r + 3, rows - 1)
            t0, t1, t2, t3 = r // group, r1 // group, r2 // group, r3 // group
            p0, p1, p2, p3 = position + t0, position + t1, position + t2, position + t3
            if p3 < base or first_key(p0, window, base) >= block_size:
                continue
            s = at + r * stride
            q0 = q + t0 * token_bytes + (r - t0 * group) * head_bytes
            q1 = q + t1 * token_bytes + (r1 - t1 * group) * head_bytes
            q2 = q + t2 * token_bytes + (r2 - t2 * group) * head_bytes
            q3 = q + t3 * token_bytes + (r3 - t3 * group) * head_bytes
            scores(q0, q1, q2, q3, k, s, stride, head_dim, block_size)
            f0 = softmax_row(s, block_size, first_key(p0, window, base), p0 - base + 1)
            f1 = softmax_row(s + stride, block_size, first_key(p1, window, base), p1 - base + 1)
            f2 = softmax_row(s + 2 * stride, block_size, first_key(p2, window, base), p2 - base + 1)
            f3 = softmax_row(s + 3 * stride, block_size, first_key(p3, window, base), p3 - base + 1)
            # Slots past the last query may hold another sequence's old values: never touched, not even times zero.
            end = min(block_size, p3 - base + 1)
            values(v, s, stride, block_size, head_pad, first_key(p0, window, base), end, f0, f1, f2, f3)

    return block


@inline
def _finish(op, row, first_head, group, rows, at):  # type: ignore[no-untyped-def]
    """Accumulators over sums, into float32 rows."""
    head_dim, head_pad = load_i64(op + ATTENTION.head_dim), load_i64(op + ATTENTION.head_pad)
    block_size, width = load_i64(op + ATTENTION.block_size), load_i64(op + ATTENTION.output_width)
    whole = head_dim - head_dim % 16
    for r in range(rows):
        s = at + r * row_stride(head_pad, block_size)
        accumulator = s + STATE + 4 * block_size
        column = (first_head + r % group) * head_dim
        output = load_i64(op + ATTENTION.output) + ((row + r // group) * width + column) * 4
        total = simd.splat(load_f32(s + 4))
        for d in range(0, whole, 16):
            simd.store(output + d * 4, simd.div(simd.load(accumulator + d * 4), total))
        for d in range(whole, head_dim):
            store_f32(output + d * 4, load_f32(accumulator + d * 4) / load_f32(s + 4))


def _tile_loop(cell: Cell) -> Any:
    block, size = _block_loop(cell), cell.size

    @inline
    def blocks(op, step, seq, kv_head, q, group, position, tokens, at):  # type: ignore[no-untyped-def]
        """All blocks that the tile's queries see."""
        block_size, head_pad = load_i64(op + ATTENTION.block_size), load_i64(op + ATTENTION.head_pad)
        table = load_i64(step + STEP.block_tables) + seq * load_i64(step + STEP.table_width) * 4
        first = first_key(position, load_i64(op + ATTENTION.window), 0) // block_size
        for b in range(first, (position + tokens - 1) // block_size + 1):
            index = load_i32(table + b * 4) * load_i64(op + ATTENTION.kv_heads) + kv_head
            offset = index * head_pad * block_size * size
            k, v = load_i64(op + ATTENTION.k_cache) + offset, load_i64(op + ATTENTION.v_cache) + offset
            block(op, q, group, tokens * group, position, at, b * block_size, k, v)

    @inline
    def tile(op, step, kv_head, index, at):  # type: ignore[no-untyped-def]
        """One work item."""
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
        block_size, head_pad = load_i64(op + ATTENTION.block_size), load_i64(op + ATTENTION.head_pad)
        for r in range((tokens * group + 3) // 4 * 4):
            begin_row(at + r * row_stride(head_pad, block_size), block_size, head_pad)
        q_row = load_i64(op + ATTENTION.qkv) + row * load_i64(op + ATTENTION.ldc) * 4
        q = q_row + first_head * load_i64(op + ATTENTION.head_dim) * 4
        blocks(op, step, seq, kv_head, q, group, position, tokens, at)
        _finish(op, row, first_head, group, tokens * group, at)

    return tile


def _attention(cell: Cell) -> Any:
    tile = _tile_loop(cell)

    @inline
    def attention(operands, cores, step, worker):  # type: ignore[no-untyped-def]
        """Items are handed out by a shared counter, largest context first: their sizes differ too much for shares."""
        kv_heads = load_i64(operands + ATTENTION.kv_heads)
        per_tile = kv_heads * cores
        at = load_i64(operands + ATTENTION.scratch) + worker * load_i64(operands + ATTENTION.scratch_stride)
        counter, last = load_i64(step + STEP.counter), load_i64(step + STEP.num_tiles) * per_tile - 1
        item = last - fetch_add(counter, 1)
        while item >= 0:
            core, kv_head = item % per_tile // kv_heads, item % kv_heads
            tile(operands + core * ATTENTION_BYTES, step, kv_head, item // per_tile, at)
            item = last - fetch_add(counter, 1)

    return attention


_bf16, _f32 = _attention(BFLOAT16), _attention(FLOAT32)


@kernel
def attention_bf16(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Over a bfloat16 KV cache."""
    _bf16(operands, cores, step, worker)


@kernel
def attention_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Over a float32 KV cache."""
    _f32(operands, cores, step, worker)
