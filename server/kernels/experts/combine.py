"""The end of a mixture of experts on each core: expert outputs added up to one row for each token.

A token's experts are added in the order in which it chose them, so that its sum does not depend on the batch.
"""

from __future__ import annotations

from ..isa import simd
from ..isa.jit import inline, kernel, share_begin
from ..isa.memory import load_f32, load_i64
from ..records import STEP
from .records import COMBINE, COMBINE_BYTES


@inline
def _begin(op, t, partial, width):  # type: ignore[no-untyped-def]
    """Set the row to zeros, or multiply the shared network's output by its gate."""
    gates, by = load_i64(op + COMBINE.gates), 1.0
    if load_i64(op + COMBINE.is_begun) == 0:
        for i in range(0, width, 16):
            simd.store(partial + i * 4, simd.splat(0.0))
    elif gates != 0:
        by = load_f32(gates + t * 4)
        for i in range(0, width, 16):
            simd.store(partial + i * 4, simd.mul(simd.load(partial + i * 4), simd.splat(by)))


@inline
def _add(partial, row, weight, width):  # type: ignore[no-untyped-def]
    """Add weight * row to partial."""
    by = simd.splat(weight)
    for i in range(0, width, 16):
        simd.store(partial + i * 4, simd.fma(by, simd.load(row + i * 4), simd.load(partial + i * 4)))


@kernel
def combine(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Add experts' outputs into each core's partial sums. Items are rows of every core."""
    rows, width = load_i64(step + STEP.num_tokens), load_i64(operands + COMBINE.width)
    per_token = load_i64(operands + COMBINE.per_token)
    for item in range(share_begin(cores * rows, worker, workers), share_begin(cores * rows, worker + 1, workers)):
        t, op = item % rows, operands + item // rows * COMBINE_BYTES
        partial = load_i64(op + COMBINE.partial) + t * width * 4
        _begin(op, t, partial, width)
        for i in range(t * per_token, (t + 1) * per_token):
            expert, weight = load_i64(load_i64(op + COMBINE.chosen) + i * 8), 1.0
            if load_i64(op + COMBINE.first_expert) <= expert < load_i64(op + COMBINE.last_expert):
                if load_i64(op + COMBINE.weights) != 0:
                    weight = load_f32(load_i64(op + COMBINE.weights) + i * 4)
                row = load_i64(op + COMBINE.outputs) + load_i64(load_i64(op + COMBINE.slots) + i * 8) * width * 4
                _add(partial, row, weight, width)
