"""What attention on lanes does alike whatever it multiplies: an item's rows, its chunks of keys, and their softmax."""

from __future__ import annotations

from typing import Any

from neuronserve.server.device.attention_layout import CHUNK
from neuronserve.server.kernels.attention.items import ITEM
from neuronserve.server.kernels.attention.softmax import LINE
from neuronserve.server.kernels.attention.state import first_key, state_bytes
from neuronserve.server.kernels.isa.jit import inline
from neuronserve.server.kernels.isa.memory import hidden, load_f32, load_i32, load_i64
from neuronserve.server.kernels.records import ATTENTION


@inline
def row_position(item, r):  # type: ignore[no-untyped-def]
    """Row `r`'s place in its context."""
    return load_i64(item + ITEM.position) + r // load_i64(item + ITEM.group)


@inline
def line_of(item, r):  # type: ignore[no-untyped-def]
    """Address of row `r`'s scores; behind those of all rows lie the chunk's scales, and what a kernel itself needs."""
    return load_i64(item + ITEM.work) + r * LINE


@inline
def scales_of(item):  # type: ignore[no-untyped-def]
    """Address of the chunk's scales: a line of K's, and one of V's."""
    return line_of(item, load_i64(load_i64(item + ITEM.op) + ATTENTION.state_rows))


@inline
def block_place(item, block):  # type: ignore[no-untyped-def]
    """Bytes from the cache's first block to the sequence's block `block`, of the item's kv head."""
    op = load_i64(item + ITEM.op)
    index = load_i32(load_i64(item + ITEM.table) + block * 4) * load_i64(op + ATTENTION.kv_heads)
    return (index + load_i64(item + ITEM.kv_head)) * load_i64(op + ATTENTION.block_bytes)


@inline
def sees(item, r, base):  # type: ignore[no-untyped-def]
    """Whether any of rows `r` to r + 3 sees a key of the chunk."""
    last = min(r + 3, load_i64(item + ITEM.rows) - 1)
    window = load_i64(load_i64(item + ITEM.op) + ATTENTION.window)
    return row_position(item, last) >= base and first_key(row_position(item, r), window) < base + CHUNK


def soften_rows(softmax_row: Any) -> Any:
    """All rows of an item, by what softens one."""

    @inline
    def soften(item, base):  # type: ignore[no-untyped-def]
        """Scores of all rows to weights; to zeros where a row sees no key of the chunk."""
        rows = load_i64(item + ITEM.rows)
        for i in range(hidden(rows)):  # not several rows at a time, nor once for each kind of cap: it is long as it is
            op, scales = load_i64(item + ITEM.op), scales_of(item)
            head_pad, cap = load_i64(op + ATTENTION.head_pad), load_f32(op + ATTENTION.cap)
            states, window = load_i64(item + ITEM.states), load_i64(op + ATTENTION.window)
            state, s, position = states + i * state_bytes(head_pad), line_of(item, i), row_position(item, i)
            begin, end = first_key(position, window) - base, position - base + 1
            softmax_row(state, s, s, begin, end, scales, head_pad, cap)

    return soften
