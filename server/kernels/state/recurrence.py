"""Recurrent state layers: the gated delta rule (arXiv:2412.06464) and Mamba-2 (arXiv:2405.21060).

The recurrence is computed token by token, so a state does not depend on how a prompt is divided into steps. A block of
columns stays in the first-level cache for STATE_TOKENS tokens, whose keys and queries are prepared before.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...device.state_layout import STATE_COLUMNS, STATE_TOKENS
from ..isa import simd
from ..isa.jit import inline, made_kernel
from ..isa.memory import load_f32, load_i32, load_i64, stack_lines, store_i64
from ..records import STEP, offsets, size_of
from .gates import write_gates
from .items import divided, load_part, slot_address, store_part
from .records import RECURRENCE, RECURRENCE_BYTES
from .update import ANSWER, DELTA, ROW, Next, advance_four, advance_one, recall_four, recall_one


class TokensRecord(NamedTuple):
    """A head's tokens that are computed together, on the worker's stack."""

    num_tokens: int
    keys: int  # of the first token
    queries: int
    key_stride: int  # bytes
    key_dim: int
    values: int
    value_stride: int
    output: int
    output_stride: int
    decays: int  # float32 [num_tokens]
    strengths: int
    skip: int  # address of the head's factor of its values, or 0
    slots: int  # int32 [num_tokens]: the slot of the state after each token
    slot_bytes: int


TOKENS = offsets(TokensRecord)
_stack_tokens = stack_lines(-(-size_of(TokensRecord) // 64))
_stack_work = stack_lines(3 * ROW // 64)  # output, answer, delta of a block


@inline
def _unit(source, dim, scale, to):  # type: ignore[no-untyped-def]
    """Write a vector divided by its norm, times `scale`. The epsilon is that of the reference."""
    squares = simd.splat(0.0)
    for i in range(0, dim, 16):
        value = load_part(source + i * 4, dim - i)
        squares = simd.fma(value, value, squares)
    by = simd.splat(scale / math.sqrt(simd.sum_lanes(squares) + 1e-6))
    for i in range(0, dim, 16):
        simd.store(to + i * 4, simd.mul(load_part(source + i * 4, dim - i), by))


@inline
def _set_keys(op, head, row, count, tokens, scratch):  # type: ignore[no-untyped-def]
    """Write normed keys and queries to the scratch, side by side for each token."""
    dim, ldc = load_i64(op + RECURRENCE.key_dim), load_i64(op + RECURRENCE.ldc) * 4
    stride = (dim + 15) // 16 * 64
    at = row * ldc + load_i32(load_i64(op + RECURRENCE.key_heads) + head * 4) * dim * 4
    keys, queries = load_i64(op + RECURRENCE.keys) + at, load_i64(op + RECURRENCE.queries) + at
    for i in range(count):
        to = scratch + 2 * i * stride
        _unit(keys + i * ldc, dim, 1.0, to)
        _unit(queries + i * ldc, dim, load_f32(op + RECURRENCE.scale), to + stride)
    store_i64(tokens + TOKENS.keys, scratch)
    store_i64(tokens + TOKENS.queries, scratch + stride)
    store_i64(tokens + TOKENS.key_stride, 2 * stride)


@inline
def _point_at_keys(op, head, row, count, tokens, scratch):  # type: ignore[no-untyped-def]
    """Use keys and queries as they are."""
    dim, ldc = load_i64(op + RECURRENCE.key_dim), load_i64(op + RECURRENCE.ldc) * 4
    at = row * ldc + load_i32(load_i64(op + RECURRENCE.key_heads) + head * 4) * dim * 4
    store_i64(tokens + TOKENS.keys, load_i64(op + RECURRENCE.keys) + at)
    store_i64(tokens + TOKENS.queries, load_i64(op + RECURRENCE.queries) + at)
    store_i64(tokens + TOKENS.key_stride, ldc)


@inline
def _set_tokens(op, head, row, count, tokens, gates, slots):  # type: ignore[no-untyped-def]
    ldc, dim = load_i64(op + RECURRENCE.ldc) * 4, load_i64(op + RECURRENCE.value_dim)
    output_ldc, skips = load_i64(op + RECURRENCE.output_ldc) * 4, load_i64(op + RECURRENCE.skips)
    store_i64(tokens + TOKENS.num_tokens, count)
    store_i64(tokens + TOKENS.key_dim, load_i64(op + RECURRENCE.key_dim))
    store_i64(tokens + TOKENS.values, load_i64(op + RECURRENCE.values) + row * ldc + head * dim * 4)
    store_i64(tokens + TOKENS.value_stride, ldc)
    store_i64(tokens + TOKENS.output, load_i64(op + RECURRENCE.output) + row * output_ldc + head * dim * 4)
    store_i64(tokens + TOKENS.output_stride, output_ldc)
    store_i64(tokens + TOKENS.decays, gates)
    store_i64(tokens + TOKENS.strengths, gates + STATE_TOKENS * 4)
    store_i64(tokens + TOKENS.skip, skips + head * 4 if skips != 0 else 0)
    store_i64(tokens + TOKENS.slots, slots)
    store_i64(tokens + TOKENS.slot_bytes, load_i64(op + RECURRENCE.slot_bytes))


def _write_delta(has_delta: bool, width: int) -> Any:
    """Return the function that writes what a token adds to the state for its key: [width] of a block of columns."""

    @inline
    def write_delta(tokens, i, column, count, work):  # type: ignore[no-untyped-def]
        values = load_i64(tokens + TOKENS.values) + i * load_i64(tokens + TOKENS.value_stride) + column * 4
        decay = simd.splat(load_f32(load_i64(tokens + TOKENS.decays) + i * 4))
        strength = simd.splat(load_f32(load_i64(tokens + TOKENS.strengths) + i * 4))
        for j in range(0, width, 16):
            delta = load_part(values + j * 4, count - j)
            if has_delta:
                delta = simd.sub(delta, simd.mul(decay, simd.load(work + ANSWER + j * 4)))
            simd.store(work + DELTA + j * 4, simd.mul(strength, delta))

    return write_delta


@inline
def _write_output(tokens, i, column, count, work):  # type: ignore[no-untyped-def]
    """Write `count` columns of a token's output."""
    values = load_i64(tokens + TOKENS.values) + i * load_i64(tokens + TOKENS.value_stride) + column * 4
    to = load_i64(tokens + TOKENS.output) + i * load_i64(tokens + TOKENS.output_stride) + column * 4
    skip = load_i64(tokens + TOKENS.skip)
    for j in range(0, count, 16):
        value = simd.load(work + j * 4)
        if skip != 0:
            value = simd.fma(load_part(values + j * 4, count - j), simd.splat(load_f32(skip)), value)
        store_part(to + j * 4, value, count - j)


def _run_block(has_delta: bool, recall: Any, last: Any, inner: Any, width: int) -> Any:
    """Return the pass of a head's tokens over one block of `width` columns, `count` of which are not padding.

    `inner` advances by a token that has a next one, `last` by one that has none; `recall` asks the state for a key.
    """
    write_delta = _write_delta(has_delta, width)

    @inline
    def run(tokens, source, states, column, count, ahead):  # type: ignore[no-untyped-def]
        slots, slot_bytes = load_i64(tokens + TOKENS.slots), load_i64(tokens + TOKENS.slot_bytes)
        work, dim, stride = _stack_work(), load_i64(tokens + TOKENS.key_dim), load_i64(tokens + TOKENS.key_stride)
        key, query = load_i64(tokens + TOKENS.keys), load_i64(tokens + TOKENS.queries)
        end, decays = load_i64(tokens + TOKENS.num_tokens) - 1, load_i64(tokens + TOKENS.decays)
        if has_delta:
            recall(source, key, dim, work + ANSWER, ahead)
        for i in range(end + 1):
            write_delta(tokens, i, column, count, work)
            to = states + load_i32(slots + i * 4) * slot_bytes
            decay = load_f32(decays + i * 4)
            if i < end:
                inner(source, to, key, query, key + stride, decay, dim, work)
            else:
                last(source, to, key, query, ahead, decay, dim, work)
            _write_output(tokens, i, column, count, work)
            source, key, query = to, key + stride, query + stride

    return run


def _run_tokens(has_delta: bool) -> Any:
    """Return the pass of a head's tokens over its state, from `source` to their slots; `states` is in slot 0."""
    then: Next = "answer" if has_delta else "nothing"
    last: Next = "load half" if has_delta else "load"
    four = _run_block(has_delta, recall_four, advance_four(last), advance_four(then), STATE_COLUMNS)
    one = _run_block(has_delta, recall_one, advance_one(last), advance_one(then), 16)

    @inline
    def run(op, tokens, source, states, ahead):  # type: ignore[no-untyped-def]
        dim, column = load_i64(op + RECURRENCE.value_dim), 0
        column_bytes = load_i64(op + RECURRENCE.key_dim) * 4
        while dim - column >= STATE_COLUMNS:
            at = column * column_bytes
            column += STATE_COLUMNS
            following = source + column * column_bytes
            if column >= dim:
                following = ahead
            four(tokens, source + at, states + at, column - STATE_COLUMNS, STATE_COLUMNS, following)
        while column < dim:
            at = column * column_bytes
            one(tokens, source + at, states + at, column, min(16, dim - column), ahead)
            column += 16

    return run


@inline
def _head_bytes(op):  # type: ignore[no-untyped-def]
    return load_i64(op + RECURRENCE.key_dim) * ((load_i64(op + RECURRENCE.value_dim) + 15) // 16 * 64)


@inline
def _clear(to, size):  # type: ignore[no-untyped-def]
    for i in range(0, size, 64):
        simd.store(to + i, simd.splat(0.0))


def _do_item(has_delta: bool, set_keys: Any) -> Any:
    run_tokens, set_gates = _run_tokens(has_delta), write_gates(has_delta)

    @inline
    def do_item(operands, step, part, seq, worker):  # type: ignore[no-untyped-def]
        heads = load_i64(operands + RECURRENCE.max_heads)
        op, head = operands + part // heads * RECURRENCE_BYTES, part % heads
        if head >= load_i64(op + RECURRENCE.heads):
            return
        starts, size = load_i64(step + STEP.query_start) + seq * 4, _head_bytes(op)
        states, slot_bytes = load_i64(op + RECURRENCE.states) + head * size, load_i64(op + RECURRENCE.slot_bytes)
        reads = load_i64(step + STEP.state_read)
        source = slot_address(states, slot_bytes, reads, seq)
        writes, first, last = load_i64(step + STEP.state_write), load_i32(starts), load_i32(starts + 4)
        if source == 0:
            source = states + load_i32(writes + first * 4) * slot_bytes
            _clear(source, size)
        ahead = states + size + load_i32(reads) * slot_bytes  # the next head's state of the first sequence
        if seq + 1 < load_i64(step + STEP.num_seqs):
            ahead = states + load_i32(reads + seq * 4 + 4) * slot_bytes
        gates = load_i64(operands + RECURRENCE.scratch) + worker * load_i64(operands + RECURRENCE.scratch_stride)
        keys, tokens = gates + 2 * STATE_TOKENS * 4, _stack_tokens()
        for row in range(first, last, STATE_TOKENS):
            count = min(STATE_TOKENS, last - row)
            _set_tokens(op, head, row, count, tokens, gates, writes + row * 4)
            set_keys(op, head, row, count, tokens, keys)
            set_gates(op, head, row, count, gates, gates + STATE_TOKENS * 4)
            run_tokens(op, tokens, source, states, ahead)
            source = states + load_i32(writes + (row + count - 1) * 4) * slot_bytes

    return do_item


@inline
def _parts(operands, cores):  # type: ignore[no-untyped-def]
    return cores * load_i64(operands + RECURRENCE.max_heads)


delta_rule = made_kernel("delta_rule", divided(STEP.num_seqs, _parts, _do_item(True, _set_keys)))
mamba2 = made_kernel("mamba2", divided(STEP.num_seqs, _parts, _do_item(False, _point_at_keys)))
