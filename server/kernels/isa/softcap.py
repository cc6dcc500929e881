"""The hyperbolic tangent of sixteen lanes, and the soft cap of scores and logits."""

from __future__ import annotations

from typing import Any

from . import instruction, simd
from .jit import inline
from .memory import emitted


@emitted(simd.float32x16, *[simd.float32x16] * 3)
def _where_small(builder: Any, x: Any, inside: Any, outside: Any) -> Any:
    """Return `inside` if |x| < 1, else `outside`; NaN is not small."""
    size = instruction.call(builder, "llvm.fabs.v16f32", x.type, x)
    one = x.type([1.0] * simd.LANES)
    return builder.select(builder.fcmp_ordered("<", size, one), inside, outside)


@inline
def tanh(x):  # type: ignore[no-untyped-def]
    """Return tanh(x) to 4 units in the last place; NaN stays NaN.

    Below 1 it is a quotient of polynomials, the [7/6] Pade approximant, whose error at 1 is 3e-10. Beyond 1 it is a
    quotient of exponentials, which would lose digits near 0.
    """
    one, square = simd.splat(1.0), simd.mul(x, x)
    above = simd.fma(simd.add(square, simd.splat(378.0)), square, simd.splat(17_325.0))
    above = simd.mul(x, simd.fma(above, square, simd.splat(135_135.0)))
    below = simd.fma(simd.fma(simd.splat(28.0), square, simd.splat(3_150.0)), square, simd.splat(62_370.0))
    below = simd.fma(below, square, simd.splat(135_135.0))
    power = simd.exp(simd.add(x, x))
    above = _where_small(x, above, simd.sub(power, one))
    return simd.div(above, _where_small(x, below, simd.add(power, one)))


@inline
def softcap(x, cap):  # type: ignore[no-untyped-def]
    """Return cap * tanh(x / cap)."""
    by = simd.splat(cap)
    return simd.mul(tanh(simd.div(x, by)), by)
