"""Functions that both kinds of attention on lanes share: an item's rows, its chunks of keys, and their softmax."""

from __future__ import annotations

from typing import Any

from ...device.attention_layout import CHUNK
from ..isa.jit import inline
from ..isa.memory import hidden, load_f32, load_i32, load_i64
from ..records import ATTENTION
from .items import ITEM, end_key, slope_of
from .softmax import LINE
from .state import first_key, state_bytes


@inline
def row_position(item, r):  # type: ignore[no-untyped-def]
    """Return row `r`'s position in its context."""
    return load_i64(item + ITEM.position) + r // load_i64(item + ITEM.group)


@inline
def line_of(item, r):  # type: ignore[no-untyped-def]
    """Return the address of row `r`'s scores; the chunk's scales and the kernel's own data follow all rows."""
    return load_i64(item + ITEM.work) + r * LINE


@inline
def scales_of(item):  # type: ignore[no-untyped-def]
    """Return the address of the chunk's scales: a line of K's, then a line of V's."""
    return line_of(item, load_i64(load_i64(item + ITEM.op) + ATTENTION.state_rows))


@inline
def place_of(item, head, block):  # type: ignore[no-untyped-def]
    """Return the offset in bytes, from the cache's first block, of a block of the item's sequence and a kv head."""
    op = load_i64(item + ITEM.op)
    at = load_i32(load_i64(item + ITEM.table) + block * 4) * load_i64(op + ATTENTION.block_stride)
    return at + head * load_i64(op + ATTENTION.block_bytes)


@inline
def block_place(item, block):  # type: ignore[no-untyped-def]
    """Return the same of the item's kv head."""
    return place_of(item, load_i64(item + ITEM.kv_head), block)


@inline
def sees(item, r, count, base):  # type: ignore[no-untyped-def]
    """Return whether any of `count` rows from `r` on sees a key of the chunk."""
    last = (min(r + count, load_i64(item + ITEM.rows)) - 1) // load_i64(item + ITEM.group)
    window = load_i64(load_i64(item + ITEM.op) + ATTENTION.window)
    return end_key(item, last) > base and first_key(row_position(item, r), window) < base + CHUNK


@inline
def _bias_of(item, head, position, base):  # type: ignore[no-untyped-def]
    """Return the address of the biases, by distance, of a query's scores of the chunk's keys; 0 without any."""
    op, bias = load_i64(item + ITEM.op), load_i64(load_i64(item + ITEM.op) + ATTENTION.bias)
    if bias == 0:
        return 0
    head += load_i64(item + ITEM.first_head)
    middle = head * load_i64(op + ATTENTION.bias_stride) + load_i64(op + ATTENTION.bias_middle)
    return bias + (middle + base - position) * 4


def soften_rows(softmax_row: Any) -> Any:
    """Return a softmax over all rows of an item, made of the softmax of one."""

    @inline
    def soften(item, base):  # type: ignore[no-untyped-def]
        """Turn the scores of all rows into weights; zeros if a row sees no key of the chunk."""
        state, s, scales = load_i64(item + ITEM.states), line_of(item, 0), scales_of(item)
        position, group = load_i64(item + ITEM.position), load_i64(item + ITEM.group)
        for token in range(hidden(load_i64(item + ITEM.tokens))):
            window = load_i64(load_i64(item + ITEM.op) + ATTENTION.window)
            begin, end = first_key(position + token, window) - base, end_key(item, token) - base
            for head in range(hidden(group)):  # neither unrolled nor compiled for each cap: the body is long
                op = load_i64(item + ITEM.op)
                head_pad, cap = load_i64(op + ATTENTION.head_pad), load_f32(op + ATTENTION.cap)
                bias = _bias_of(item, head, position + token, base)
                softmax_row(state, s, s, begin, end, scales, head_pad, cap, slope_of(item, head), bias)
                state, s = state + state_bytes(head_pad), s + LINE

    return soften
