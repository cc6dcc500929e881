"""RMSNorm of a state layer's heads or groups with a gate: before the norm, after it, or without a norm."""

from __future__ import annotations

import math

from ..isa import simd
from ..isa.jit import inline, made_kernel
from ..isa.memory import load_f32, load_i64
from ..matmul.epilogue import sigmoid
from ..records import STEP
from .items import divided, load_part, store_part
from .records import GATED_NORM, GATED_NORM_BYTES


@inline
def _gate(op, row, column, count):  # type: ignore[no-untyped-def]
    """Return silu(z), or sigmoid(z), of sixteen columns."""
    at = (row * load_i64(op + GATED_NORM.gates_ldc) + column) * 4
    z = load_part(load_i64(op + GATED_NORM.gates) + at, count)
    if load_i64(op + GATED_NORM.has_sigmoid) != 0:
        return sigmoid(z)
    return simd.mul(z, sigmoid(z))


@inline
def _value(op, row, column, count):  # type: ignore[no-untyped-def]
    """Return what the norm takes: x, or x * silu(z)."""
    at = (row * load_i64(op + GATED_NORM.source_ldc) + column) * 4
    value = load_part(load_i64(op + GATED_NORM.source) + at, count)
    if load_i64(op + GATED_NORM.is_gate_first) != 0:
        value = simd.mul(value, _gate(op, row, column, count))
    return value


@inline
def _sum_of_squares(op, row, group):  # type: ignore[no-untyped-def]
    columns, squares = load_i64(op + GATED_NORM.columns), simd.splat(0.0)
    for i in range(0, columns, 16):
        value = _value(op, row, group * columns + i, columns - i)
        squares = simd.fma(value, value, squares)
    return simd.sum_lanes(squares)


@inline
def _write(op, row, group, scale):  # type: ignore[no-untyped-def]
    """Write a group's columns: the norm's input times `scale` and the weight, then the gate unless it was first."""
    columns, weight = load_i64(op + GATED_NORM.columns), load_i64(op + GATED_NORM.weight)
    to = load_i64(op + GATED_NORM.output) + (row * load_i64(op + GATED_NORM.output_ldc) + group * columns) * 4
    weights = weight + group * load_i64(op + GATED_NORM.weight_stride)
    for i in range(0, columns, 16):
        value = simd.mul(_value(op, row, group * columns + i, columns - i), simd.splat(scale))
        if weight != 0:
            value = simd.mul(value, load_part(weights + i * 4, columns - i))
        if load_i64(op + GATED_NORM.is_gate_first) == 0:
            value = simd.mul(value, _gate(op, row, group * columns + i, columns - i))
        store_part(to + i * 4, value, columns - i)


@inline
def _do_item(operands, step, part, row, worker):  # type: ignore[no-untyped-def]
    groups, cores = load_i64(operands + GATED_NORM.max_groups), load_i64(operands + GATED_NORM.group_cores)
    op, group = operands + part // groups * cores * GATED_NORM_BYTES, part % groups
    if group >= load_i64(op + GATED_NORM.groups):
        return
    scale = 1.0
    if load_i64(op + GATED_NORM.weight) != 0:
        squares = 0.0
        for core in range(cores):
            squares += _sum_of_squares(op + core * GATED_NORM_BYTES, row, group)
        mean = squares / load_i64(op + GATED_NORM.size)
        scale = 1.0 / math.sqrt(mean + load_f32(op + GATED_NORM.eps))
    for core in range(cores):
        _write(op + core * GATED_NORM_BYTES, row, group, scale)


@inline
def _parts(operands, cores):  # type: ignore[no-untyped-def]
    return cores // load_i64(operands + GATED_NORM.group_cores) * load_i64(operands + GATED_NORM.max_groups)


gated_norm = made_kernel("gated_norm", divided(STEP.num_tokens, _parts, _do_item))
