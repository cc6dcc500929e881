"""What hosts with a tile unit have beside it: AVX-512 with bfloat16.

Instructions are named here that the rest of the kernels leave to the compiler. Results that are rounded to bfloat16
afterwards need no more than these give.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from server.device.kernels import simd
from server.device.kernels.dots import BFloat
from server.device.kernels.jit import inline
from server.device.kernels.memory import NOTHING, emitted

_LOG2E = 1.4426950408889634
_LN2 = 0.6931471805599453
_I16, _I32 = ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(ir.FloatType(), simd.LANES)


def _store_halves(builder: Any, address: Any, halves: Any) -> Any:
    bits = builder.bitcast(halves, ir.VectorType(_I16, halves.type.count))
    builder.store(bits, builder.inttoptr(address, bits.type.as_pointer()), align=2)
    return NOTHING


@emitted(types.void, types.int64, simd.float32x16)
def store_bf16(builder: Any, address: Any, value: Any) -> Any:
    """16 bfloat16 to memory, rounded to nearest even (VCVTNEPS2BF16)."""
    halves = ir.VectorType(BFloat(), simd.LANES)
    return _store_halves(builder, address, simd.call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", halves, value))


@emitted(types.void, types.int64, simd.float32x16, simd.float32x16)
def store_bf16_pair(builder: Any, address: Any, first: Any, second: Any) -> Any:
    """32 bfloat16 to memory, rounded to nearest even (VCVTNE2PS2BF16)."""
    halves = ir.VectorType(BFloat(), 2 * simd.LANES)
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    return _store_halves(builder, address, simd.call(builder, name, halves, second, first))


@emitted(simd.float32x16, simd.float32x16, simd.float32x16)
def _times_power(builder: Any, value: Any, power: Any) -> Any:
    """value * 2 ** floor(power): 0 and infinite where that leaves the range (VSCALEFPS)."""
    arguments = (value, power, value, ir.Constant(_I16, -1), ir.Constant(_I32, 4))
    return simd.call(builder, "llvm.x86.avx512.mask.scalef.ps.512", _V, *arguments)


@emitted(simd.float32x16, simd.float32x16)
def _about_inverse(builder: Any, value: Any) -> Any:
    """1 / value to 2 ** -14, relatively (VRCP14PS)."""
    return simd.call(builder, "llvm.x86.avx512.rcp14.ps.512", _V, value, value, ir.Constant(_I16, -1))


@emitted(simd.float32x16, simd.float32x16, simd.float32x16)
def _at_most(builder: Any, value: Any, limit: Any) -> Any:
    """The value or, where it is larger or NaN, the limit (VMINPS)."""
    return builder.select(builder.fcmp_ordered("<", value, limit), value, limit)


@inline
def inverse(x):  # type: ignore[no-untyped-def]
    """1 / x to 1e-7, relatively, for 2 ** -126 <= |x| <= 2 ** 126: one Newton step. NaN stays NaN."""
    y = _about_inverse(x)
    return simd.fma(y, simd.sub(simd.splat(1.0), simd.mul(x, y)), y)


@inline
def exp2(x):  # type: ignore[no-untyped-def]
    """2 ** x to 2e-6, relatively: the Taylor polynomial of degree 5 on the fraction, |f| <= 1/2; NaN stays NaN."""
    n = simd.rint(x)
    f = simd.sub(x, n)
    p = simd.fma(simd.splat(_LN2**5 / 120), f, simd.splat(_LN2**4 / 24))
    p = simd.fma(p, f, simd.splat(_LN2**3 / 6))
    p = simd.fma(p, f, simd.splat(_LN2**2 / 2))
    p = simd.fma(p, f, simd.splat(_LN2))
    return _times_power(simd.fma(p, f, simd.splat(1.0)), n)


@inline
def silu(x):  # type: ignore[no-untyped-def]
    """x / (1 + e ** -x) to 3e-6, relatively, or below 1e-36 for x < -87. NaN stays NaN."""
    power = _at_most(simd.mul(x, simd.splat(-_LOG2E)), simd.splat(126.0))
    return simd.mul(x, inverse(simd.add(simd.splat(1.0), exp2(power))))
