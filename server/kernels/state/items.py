"""Division of state layers among workers, and vectors at the end of a head or of the channels.

An item is one part of a core (a head, or a block of channels) for one sequence or row. Items of one part are
neighbours, so that a long prompt beside single tokens is divided by parts.
"""

from __future__ import annotations

from typing import Any

from ..isa import simd
from ..isa.jit import inline, share_begin
from ..isa.memory import copy_4_bytes, load_i32, load_i64, stack_lines

_line = stack_lines(1)


def divided(count_field: int, parts: Any, do_item: Any) -> Any:
    """Return the loop of a kernel that calls `do_item(operands, step, part, i, worker)`.

    `parts(operands, cores)` is the number of parts of all cores; `i` counts to the step's field `count_field`.
    """

    @inline
    def run(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        first, count = 0, load_i64(step + count_field)
        total = parts(operands, cores)
        if workers < 0:  # rows are divided, and each worker computes all parts
            first, end = share_begin(count, worker, workers), share_begin(count, worker + 1, workers)
            count = end - first
            begin, end = 0, total * count
        else:
            begin, end = share_begin(total * count, worker, workers), share_begin(total * count, worker + 1, workers)
        for index in range(begin, end):
            do_item(operands, step, index // count, first + index % count, worker)

    return run


@inline
def slot_address(base, slot_bytes, slots, seq):  # type: ignore[no-untyped-def]
    """Return the address of a sequence's state, or 0 if it is slot 0."""
    slot = load_i32(slots + seq * 4)
    if slot == 0:
        return 0
    return base + slot * slot_bytes


@inline
def load_part(address, count):  # type: ignore[no-untyped-def]
    """Load the first `count` of sixteen float32, the others 0; reads no byte beyond."""
    if count >= 16:
        return simd.load(address)
    line = _line()
    simd.store(line, simd.splat(0.0))
    for i in range(count):
        copy_4_bytes(address + i * 4, line + i * 4)
    return simd.load(line)


@inline
def store_part(address, value, count):  # type: ignore[no-untyped-def]
    """Store the first `count` of sixteen float32."""
    if count >= 16:
        simd.store(address, value)
    else:
        line = _line()
        simd.store(line, value)
        for i in range(count):
            copy_4_bytes(line + i * 4, address + i * 4)
