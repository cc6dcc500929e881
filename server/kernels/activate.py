"""activation(gate) * up, or activation(up), as an instruction of its own.

So it is for products that receive an addend first, for gates that depend on the whole row, and learned functions.

The functions are those of the products' epilogue, so the result is the same to the last bit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .isa import simd
from .isa.jit import inline, kernel, made_kernel, share_begin
from .isa.memory import load_f32, load_i64
from .matmul.epilogue import OUTPUTS, Output, relu
from .records import STEP, offsets, size_of
from .state.gates import softplus


class ActivateOperands(NamedTuple):
    """One core's activation(gate) * up of alternating tiles, or its activation(up)."""

    source: int  # float32 [T, columns]
    columns: int  # a multiple of 32: twice the width where there is a gate
    output: int  # float32 rows or bfloat16 panels, [T, width]; may be the source where there is no gate
    width: int
    activation: int  # index in epilogue.ACTIVATIONS
    cutoff: int = 0  # of sparse gates, bits of a float32: gates lose the row's mean and as many deviations
    size: int = 0  # of sparse gates: those of a row on all cores; padded ones are 0


ACTIVATE, ACTIVATE_BYTES = offsets(ActivateOperands), size_of(ActivateOperands)


@inline
def _sum(operands, cores, row, middle, power):  # type: ignore[no-untyped-def]
    """Return the sum of a row's gates, or of the squares of their distances from `middle`, padded ones included."""
    total, by, columns = simd.splat(0.0), simd.splat(middle), load_i64(operands + ACTIVATE.columns)
    for core in range(cores):
        source = load_i64(operands + core * ACTIVATE_BYTES + ACTIVATE.source) + row * columns * 4
        for n in range(0, columns * 4, 128):
            value = simd.sub(simd.load(source + n), by)
            total = simd.add(total, value if power == 1 else simd.mul(value, value))
    return simd.sum_lanes(total)


@inline
def _least_gate(operands, cores, row):  # type: ignore[no-untyped-def]
    """Return the gate of a row that counts as 0."""
    size = load_i64(operands + ACTIVATE.size)
    mean = _sum(operands, cores, row, 0.0, 1) / size
    padded = cores * load_i64(operands + ACTIVATE.columns) // 2 - size
    squares = _sum(operands, cores, row, mean, 2) - padded * mean * mean
    return mean + load_f32(operands + ACTIVATE.cutoff) * math.sqrt(max(squares / size, 0.0))


def _activate(to: Output, is_sparse: bool = False) -> Any:
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
            least = _least_gate(operands, cores, row) if is_sparse else 0.0
            for n in range(0, columns // 16, 2):
                at = source + n * 64
                first = relu(simd.sub(simd.load(at), simd.splat(least))) if is_sparse else simd.load(at)
                store(place(output, width, row, n), first, simd.load(at + 64), 2, activation)

    return activate


activate_rows = made_kernel("activate_rows", _activate(OUTPUTS["plain"]))
gate_rows = made_kernel("gate_rows", _activate(OUTPUTS["gated"]))
gate_panels = made_kernel("gate_panels", _activate(OUTPUTS["gated_panels"]))  # bfloat16, for the tile unit
sparse_gate_rows = made_kernel("sparse_gate_rows", _activate(OUTPUTS["gated"], is_sparse=True))
sparse_gate_panels = made_kernel("sparse_gate_panels", _activate(OUTPUTS["gated_panels"], is_sparse=True))


class XIELUOperands(NamedTuple):
    """One core's xIELU in place, with learned numbers. Source: XIELUActivation of transformers; arXiv 2411.13010."""

    rows: int  # float32 [T, width]
    width: int
    alpha_p: int  # address of one float32, as of the others
    alpha_n: int
    beta: int
    eps: int


_XIELU, _XIELU_BYTES = offsets(XIELUOperands), size_of(XIELUOperands)


@kernel
def xielu_rows(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Replace x by a x^2 + b x above 0, and by c (e^min(x, eps) - 1 - x) + b x elsewhere."""
    rows, zero, one = load_i64(step + STEP.num_tokens), simd.splat(0.0), simd.splat(1.0)
    beta = simd.splat(load_f32(load_i64(operands + _XIELU.beta)))
    eps = simd.splat(load_f32(load_i64(operands + _XIELU.eps)))
    above = softplus(simd.splat(load_f32(load_i64(operands + _XIELU.alpha_p))))
    below = simd.add(beta, softplus(simd.splat(load_f32(load_i64(operands + _XIELU.alpha_n)))))
    for item in range(share_begin(cores * rows, worker, workers), share_begin(cores * rows, worker + 1, workers)):
        op, width = operands + item // rows * _XIELU_BYTES, load_i64(operands + _XIELU.width)
        row = load_i64(op + _XIELU.rows) + item % rows * width * 4
        for i in range(0, width * 4, 64):
            x = simd.load(row + i)
            negative = simd.sub(zero, x)
            power = simd.sub(simd.exp(simd.sub(zero, simd.larger(negative, simd.sub(zero, eps)))), one)
            rising = simd.where_at_least(x, zero, simd.mul(simd.mul(x, x), above))
            falling = simd.where_at_least(negative, zero, simd.mul(simd.sub(power, x), below))
            simd.store(row + i, simd.fma(x, beta, simd.add(rising, falling)))
