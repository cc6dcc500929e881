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
def block_place(item, block):  # type: ignore[no-untyped-def]
    """Return the offset in bytes, from the cache's first block, of block `block` of the item's sequence and kv head."""
    op = load_i64(item + ITEM.op)
    at = load_i32(load_i64(item + ITEM.table) + block * 4) * load_i64(op + ATTENTION.block_stride)
    return at + load_i64(item + ITEM.kv_head) * load_i64(op + ATTENTION.block_bytes)


@inline
def sees(item, r, base):  # type: ignore[no-untyped-def]
    """Return whether any of rows `r` to r + 3 sees a key of the chunk."""
    last = min(r + 3, load_i64(item + ITEM.rows) - 1) // load_i64(item + ITEM.group)
    window = load_i64(load_i64(item + ITEM.op) + ATTENTION.window)
    return end_key(item, last) > base and first_key(row_position(item, r), window) < base + CHUNK


@inline
def _bias_of(item, i, base):  # type: ignore[no-untyped-def]
    """Return the address of the biases, by distance, of row `i`'s scores of the chunk's keys; 0 without any."""
    op, bias = load_i64(item + ITEM.op), load_i64(load_i64(item + ITEM.op) + ATTENTION.bias)
    if bias == 0:
        return 0
    head = load_i64(item + ITEM.first_head) + i % load_i64(item + ITEM.group)
    middle = head * load_i64(op + ATTENTION.bias_stride) + load_i64(op + ATTENTION.bias_middle)
    return bias + (middle + base - row_position(item, i)) * 4


def soften_rows(softmax_row: Any) -> Any:
    """Return a softmax over all rows of an item, made of the softmax of one."""

    @inline
    def soften(item, base):  # type: ignore[no-untyped-def]
        """Turn the scores of all rows into weights; zeros if a row sees no key of the chunk."""
        rows = load_i64(item + ITEM.rows)
        for i in range(hidden(rows)):  # neither unrolled over rows nor compiled for each cap: the body is long
            op, scales = load_i64(item + ITEM.op), scales_of(item)
            head_pad, cap = load_i64(op + ATTENTION.head_pad), load_f32(op + ATTENTION.cap)
            states, window = load_i64(item + ITEM.states), load_i64(op + ATTENTION.window)
            state, s, position = states + i * state_bytes(head_pad), line_of(item, i), row_position(item, i)
            group = load_i64(item + ITEM.group)
            begin, end = first_key(position, window) - base, end_key(item, i // group) - base
            slope = slope_of(item, i % group)
            softmax_row(state, s, s, begin, end, scales, head_pad, cap, slope, _bias_of(item, i, base))

    return soften
