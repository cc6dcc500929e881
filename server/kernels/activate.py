"""activation(gate) * up, or activation(up), as an instruction of its own: for products that receive an addend first.

The functions are those of the products' epilogue, so the result is the same to the last bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .isa import simd
from .isa.jit import inline, made_kernel, share_begin
from .isa.memory import load_i64
from .matmul.epilogue import OUTPUTS, Output
from .records import STEP, offsets, size_of


class ActivateOperands(NamedTuple):
    """One core's activation(gate) * up of alternating tiles, or its activation(up)."""

    source: int  # float32 [T, columns]
    columns: int  # a multiple of 32: twice the width where there is a gate
    output: int  # float32 rows or bfloat16 panels, [T, width]; may be the source where there is no gate
    width: int
    activation: int  # index in epilogue.ACTIVATIONS


ACTIVATE, ACTIVATE_BYTES = offsets(ActivateOperands), size_of(ActivateOperands)


def _activate(to: Output) -> Any:
    """Return a kernel's loop over the rows of every core."""
    place, store = to

    @inline
    def activate(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        rows, width = load_i64(step + STEP.num_tokens), load_i64(operands + ACTIVATE.width)
        columns = load_i64(operands + ACTIVATE.columns)
        for item in range(share_begin(cores * rows, worker, workers), share_begin(cores * rows, worker + 1, workers)):
            row, op = item % rows, operands + item // rows * ACTIVATE_BYTES
            source, output = load_i64(op + ACTIVATE.source) + row * columns * 4, load_i64(op + ACTIVATE.output)
            activation = load_i64(op + ACTIVATE.activation)
            for n in range(0, columns // 16, 2):
                at = source + n * 64
                store(place(output, width, row, n), simd.load(at), simd.load(at + 64), 2, activation)

    return activate


activate_rows = made_kernel("activate_rows", _activate(OUTPUTS["plain"]))
gate_rows = made_kernel("gate_rows", _activate(OUTPUTS["gated"]))
gate_panels = made_kernel("gate_panels", _activate(OUTPUTS["gated_panels"]))  # bfloat16, for the tile unit
