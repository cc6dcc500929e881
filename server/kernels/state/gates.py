"""Decays and strengths of a recurrence: numbers of each head and token. Lanes are tokens."""

from __future__ import annotations

from typing import Any

from ..isa import simd
from ..isa.jit import inline
from ..isa.memory import copy_4_bytes, load_f32, load_i64
from ..matmul.epilogue import sigmoid
from .records import RECURRENCE

_SERIES = tuple(1.0 / (2 * n + 1) for n in range(8, 0, -1))  # atanh(s) / s - 1 in s * s, the highest power first


@inline
def softplus(x):  # type: ignore[no-untyped-def]
    """Return log(1 + e ** x) as max(x, 0) + log1p(u), u = e ** -|x|; NaN stays NaN.

    log1p(u) is 2 atanh(s) with s = u / (2 + u) <= 1 / 3, whose series is cut after a term of 1e-9 of its sum.
    """
    zero, one = simd.splat(0.0), simd.splat(1.0)
    u = simd.exp(simd.sub(zero, simd.absolute(x)))
    s = simd.div(u, simd.add(u, simd.splat(2.0)))
    square = simd.mul(s, s)
    p = simd.splat(_SERIES[0])
    p = simd.fma(p, square, simd.splat(_SERIES[1]))
    p = simd.fma(p, square, simd.splat(_SERIES[2]))
    p = simd.fma(p, square, simd.splat(_SERIES[3]))
    p = simd.fma(p, square, simd.splat(_SERIES[4]))
    p = simd.fma(p, square, simd.splat(_SERIES[5]))
    p = simd.fma(p, square, simd.splat(_SERIES[6]))
    p = simd.fma(p, square, simd.splat(_SERIES[7]))
    p = simd.fma(p, square, one)
    return simd.fma(simd.add(s, s), p, simd.larger(zero, x))


@inline
def _gather(base, ldc, row, head, count, to):  # type: ignore[no-untyped-def]
    """Copy a head's numbers of `count` rows side by side."""
    for i in range(count):
        copy_4_bytes(base + ((row + i) * ldc + head) * 4, to + i * 4)


def write_gates(has_delta: bool) -> Any:
    """Return the function that writes the decays and strengths of `count` tokens from `row` on."""

    @inline
    def write(op, head, row, count, decays, strengths):  # type: ignore[no-untyped-def]
        ldc = load_i64(op + RECURRENCE.gate_ldc)
        bias = simd.splat(load_f32(load_i64(op + RECURRENCE.step_bias) + head * 4))
        log_rate = simd.splat(load_f32(load_i64(op + RECURRENCE.decays) + head * 4))
        rate = simd.sub(simd.splat(0.0), simd.exp(log_rate))
        _gather(load_i64(op + RECURRENCE.steps), ldc, row, head, count, decays)
        if has_delta:
            _gather(load_i64(op + RECURRENCE.strengths), ldc, row, head, count, strengths)
        for i in range(0, count, 16):
            size = softplus(simd.add(simd.load(decays + i * 4), bias))
            if has_delta:
                strength = sigmoid(simd.load(strengths + i * 4))
            else:
                least = simd.splat(load_f32(op + RECURRENCE.least_step))
                size = simd.clamp(size, least, simd.splat(load_f32(op + RECURRENCE.most_step)))
                strength = size
            simd.store(decays + i * 4, simd.exp(simd.mul(rate, size)))
            simd.store(strengths + i * 4, strength)

    return write
