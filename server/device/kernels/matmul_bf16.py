"""output = activations @ weights in bfloat16 without a tile unit; layouts as in matmul_bf16_amx.

Two inner products over one pair of k: with AVX512-BF16 one instruction, elsewhere two fused multiply-adds on float32
lanes (any CPU). A weight tile row is 16 columns of one pair of k: lanes are columns, so no sum crosses lanes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from server.device.kernels import simd
from server.device.kernels.jit import inline, kernel
from server.device.kernels.matmul_lanes import lane_matmul
from server.device.kernels.memory import emitted

_TILE = 1024
_ROW = 64

_V = ir.VectorType(ir.FloatType(), simd.LANES)
_VI = ir.VectorType(ir.IntType(32), simd.LANES)
_VB = ir.VectorType(ir.IntType(16), 32)


def _pair_and_row(builder: Any, pair: Any, row: Any) -> tuple[Any, Any]:
    """Two bfloat16 k-neighbours of one activation row in every lane, and 16 columns of the same two k."""
    word = builder.load(builder.inttoptr(pair, ir.IntType(32).as_pointer()), align=2)
    one = builder.insert_element(ir.Constant(_VI, ir.Undefined), word, ir.Constant(ir.IntType(32), 0))
    both = builder.shuffle_vector(one, ir.Constant(_VI, ir.Undefined), ir.Constant(_VI, [0] * simd.LANES))
    return both, builder.load(builder.inttoptr(row, _VI.as_pointer()), align=4)


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_pair_avx512(builder: Any, total: Any, pair: Any, row: Any) -> Any:
    """total + w[even] * a[even] + w[odd] * a[odd] by VDPBF16PS."""
    a, w = _pair_and_row(builder, pair, row)
    element = ir.VectorType(_BFloat(), 32)
    function_type = ir.FunctionType(_V, [_V, element, element])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [total, builder.bitcast(a, element), builder.bitcast(w, element)])


class _BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_pair_portable(builder: Any, total: Any, pair: Any, row: Any) -> Any:
    """total + w[even] * a[even] + w[odd] * a[odd], each product rounded once into the sum."""
    a, w = _pair_and_row(builder, pair, row)
    fma_type = ir.FunctionType(_V, [_V] * 3)
    fma = cgutils.get_or_insert_function(builder.module, fma_type, "llvm.fma.v16f32")
    shift, mask = ir.Constant(_VI, [16] * simd.LANES), ir.Constant(_VI, [0xFFFF0000] * simd.LANES)
    even = [builder.bitcast(builder.shl(x, shift), _V) for x in (a, w)]
    odd = [builder.bitcast(builder.and_(x, mask), _V) for x in (a, w)]
    return builder.call(fma, [*odd, builder.call(fma, [*even, total])])


def _matmul(dot: Any) -> Any:
    """The matmul around one inner product."""

    @inline
    def four_rows(a, b, c, k_tiles, ldc):  # type: ignore[no-untyped-def]
        c0 = c1 = c2 = c3 = simd.splat(0.0)
        for k in range(k_tiles):
            for pair in range(16):
                row = b + k * _TILE + pair * _ROW
                at = a + k * _TILE + pair * 4
                c0 = dot(c0, at, row)
                c1 = dot(c1, at + _ROW, row)
                c2 = dot(c2, at + 2 * _ROW, row)
                c3 = dot(c3, at + 3 * _ROW, row)
        simd.store(c, c0)
        simd.store(c + 4 * ldc, c1)
        simd.store(c + 8 * ldc, c2)
        simd.store(c + 12 * ldc, c3)

    @inline
    def one_row(a, b, c, k_tiles):  # type: ignore[no-untyped-def]
        c0 = simd.splat(0.0)
        for k in range(k_tiles):
            for pair in range(16):
                c0 = dot(c0, a + k * _TILE + pair * 4, b + k * _TILE + pair * _ROW)
        simd.store(c, c0)

    return lane_matmul(four_rows, one_row, _ROW)


_avx512 = _matmul(dot_pair_avx512)
_portable = _matmul(dot_pair_portable)


@kernel
def matmul_bf16_avx512(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """On hosts with AVX512-BF16."""
    _avx512(operands, cores, step, worker, workers)


@kernel
def matmul_bf16_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """On any host."""
    _portable(operands, cores, step, worker, workers)
