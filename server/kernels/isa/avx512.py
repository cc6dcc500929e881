"""AVX-512 instructions with bfloat16, which every host with a tile unit has.

Other kernels leave the choice of such instructions to the compiler. The precision is enough for results that are
rounded to bfloat16 afterwards.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from . import instruction, simd, target
from .access import WRITE, pointer
from .dot_product import BFloat
from .jit import inline
from .memory import NOTHING, emitted

_LOG2E = 1.4426950408889634
_CUBIC = (0.99992522, 0.69583354, 0.22606717, 0.07802451)  # least relative error; bfloat16 rounds by up to 2e-3
_I16, _I32 = ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(ir.FloatType(), simd.LANES)


@emitted(types.boolean)
def has_registers(builder: Any) -> Any:
    """Return whether kernels are compiled for 32 registers of 512 bits; LLVM drops the branch that is not taken."""
    return ir.Constant(ir.IntType(1), int(target.compiled_features().get("avx512f", False)))


def _store_halves(builder: Any, address: Any, halves: Any) -> Any:
    bits = builder.bitcast(halves, ir.VectorType(_I16, halves.type.count))
    builder.store(bits, pointer(builder, address, bits.type, WRITE), align=2)
    return NOTHING


@emitted(types.void, types.int64, simd.float32x16)
def store_bf16(builder: Any, address: Any, value: Any) -> Any:
    """Store 16 bfloat16, rounded to nearest even (VCVTNEPS2BF16)."""
    halves = ir.VectorType(BFloat(), simd.LANES)
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    return _store_halves(builder, address, instruction.call(builder, name, halves, value))


@emitted(types.void, types.int64, simd.float32x16, simd.float32x16)
def store_bf16_pair(builder: Any, address: Any, first: Any, second: Any) -> Any:
    """Store 32 bfloat16, rounded to nearest even (VCVTNE2PS2BF16)."""
    halves = ir.VectorType(BFloat(), 2 * simd.LANES)
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    return _store_halves(builder, address, instruction.call(builder, name, halves, second, first))


@emitted(simd.float32x16, simd.float32x16, simd.float32x16)
def _times_power(builder: Any, value: Any, power: Any) -> Any:
    """Return value * 2 ** floor(power): 0 and infinity outside of the range (VSCALEFPS)."""
    arguments = (value, power, value, ir.Constant(_I16, -1), ir.Constant(_I32, 4))
    return instruction.call(builder, "llvm.x86.avx512.mask.scalef.ps.512", _V, *arguments)


@emitted(simd.float32x16, simd.float32x16)
def _about_inverse(builder: Any, value: Any) -> Any:
    """Return 1 / value with a relative error of 2 ** -14 (VRCP14PS)."""
    return instruction.call(builder, "llvm.x86.avx512.rcp14.ps.512", _V, value, value, ir.Constant(_I16, -1))


@emitted(simd.float32x16, simd.float32x16, simd.float32x16)
def _at_most(builder: Any, value: Any, limit: Any) -> Any:
    """Return the value, or the limit if the value is larger or NaN (VMINPS)."""
    return builder.select(builder.fcmp_ordered("<", value, limit), value, limit)


@inline
def inverse(x):  # type: ignore[no-untyped-def]
    """Return 1 / x with a relative error of 1e-7, for 2 ** -126 <= |x| <= 2 ** 126: one Newton step. NaN stays NaN."""
    y = _about_inverse(x)
    return simd.fma(y, simd.sub(simd.splat(1.0), simd.mul(x, y)), y)


@emitted(simd.float32x16, simd.float32x16)
def _fraction(builder: Any, value: Any) -> Any:
    """Return value - floor(value) (VREDUCEPS)."""
    down = ir.Constant(_I32, 1)
    arguments = (value, down, value, ir.Constant(_I16, -1), ir.Constant(_I32, 4))
    return instruction.call(builder, "llvm.x86.avx512.mask.reduce.ps.512", _V, *arguments)


@inline
def exp2(x):  # type: ignore[no-untyped-def]
    """Return 2 ** x with a relative error of 8e-5: the cubic nearest to 2 ** f on 0 <= f < 1. NaN stays NaN."""
    f = _fraction(x)
    p = simd.fma(simd.splat(_CUBIC[3]), f, simd.splat(_CUBIC[2]))
    p = simd.fma(p, f, simd.splat(_CUBIC[1]))
    return _times_power(simd.fma(p, f, simd.splat(_CUBIC[0])), x)


@inline
def sigmoid(x):  # type: ignore[no-untyped-def]
    """Return 1 / (1 + e ** -x) with a relative error of 1e-4; below 1e-37 for x < -87 and for NaN."""
    power = _at_most(simd.mul(x, simd.splat(-_LOG2E)), simd.splat(126.0))
    return inverse(simd.add(simd.splat(1.0), exp2(power)))
