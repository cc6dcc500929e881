"""Instructions of kernels as code for any host: `pytest -p tests.kernels.emulated` runs all paths anywhere.

Vector instructions become LLVM's plain operations, and the tile unit becomes memory of each thread. Both follow the
manuals for the cases that kernels use (Intel's Software Developer's Manual, Arm's A64 reference), except for the order
in which products of bfloat16 are summed. The kernels are the shipped ones, with their layouts, tile rows and results.
Only a real host can show that its instructions behave so, and their speed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types

from neuronserve.server.host.isa import ISAS
from neuronserve.server.kernels import compilation, dispatch
from neuronserve.server.kernels.isa import cache, dot_product, instruction, simd
from neuronserve.server.kernels.isa.dot_product import BFloat
from neuronserve.server.kernels.isa.jit import inline
from neuronserve.server.kernels.isa.memory import load_i64, load_u8, store_i64

Emit = Callable[..., Any]  # (builder, *values) -> value

_I8, _I16, _I32, _I64, _F32 = (ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType())
SYMBOL = "neuronserve_emulated_"  # prefix of the symbol of a tile instruction

_LINE, _TILE = 64, 1024
_TILES = _LINE  # a thread's tile unit: its configuration, as LDTILECFG takes it, and eight tiles
_ROWS = 48  # offset of each tile's rows in the configuration, a byte each
_UNIT_BYTES = _TILES + 8 * _TILE


def _of(kind: Any, like: Any) -> Any:
    return ir.VectorType(kind, like.type.count)


def _all(vector: Any, value: Any) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _every(builder: Any, vector: Any, step: int, first: int) -> Any:
    """Return every `step`-th element from `first` on."""
    order = list(range(first, vector.type.count, step))
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_I32, len(order)), order))


def _words(builder: Any, vector: Any, is_signed: bool = True) -> Any:
    """Return narrow integers as int32."""
    return (builder.sext if is_signed else builder.zext)(vector, _of(_I32, vector))


def _dot_integers(per_word: int, is_left_signed: bool = True) -> Emit:
    """Return the emitter of sums + the products of `per_word` neighbours each."""

    def dot(builder: Any, sums: Any, left: Any, right: Any) -> Any:
        for i in range(per_word):
            a = _words(builder, _every(builder, left, per_word, i), is_left_signed)
            sums = builder.add(sums, builder.mul(a, _words(builder, _every(builder, right, per_word, i))))
        return sums

    return dot


def _multiply_pairs(builder: Any, left: Any, right: Any) -> Any:
    """Emulate VPMADDWD."""
    sums = _all(ir.VectorType(_I32, left.type.count // 2), 0)
    return _dot_integers(2)(builder, sums, left, right)


def _multiply_unsigned_pairs(builder: Any, left: Any, right: Any) -> Any:
    """Emulate VPMADDUBSW: unsigned by signed bytes, with saturated sums of two as int16."""
    sums = _all(ir.VectorType(_I32, left.type.count // 2), 0)
    sums = _dot_integers(2, is_left_signed=False)(builder, sums, left, right)
    for sign, bound in (("<", 0x7FFF), (">", -0x8000)):
        sums = builder.select(builder.icmp_signed(sign, sums, _all(sums.type, bound)), sums, _all(sums.type, bound))
    return builder.trunc(sums, _of(_I16, sums))


def _with_signs(builder: Any, bytes_: Any, signs: Any) -> Any:
    """Emulate VPSIGNB: bytes by the signs of others, 0 where those are 0."""
    zero = _all(signs.type, 0)
    negated = builder.select(builder.icmp_signed("<", signs, zero), builder.sub(zero, bytes_), bytes_)
    return builder.select(builder.icmp_signed("==", signs, zero), zero, negated)


def _floats(builder: Any, halves: Any) -> Any:
    """Return bfloat16 as float32."""
    bits = builder.zext(builder.bitcast(halves, _of(_I16, halves)), _of(_I32, halves))
    return builder.bitcast(builder.shl(bits, _all(bits.type, 16)), _of(_F32, halves))


def _dot_bfloats(per_word: int) -> Emit:
    """Return the emitter of sums + the products of `per_word` neighbours each, in order."""

    def dot(builder: Any, sums: Any, left: Any, right: Any) -> Any:
        left, right = _floats(builder, left), _floats(builder, right)
        for i in range(per_word):
            factors = (_every(builder, each, per_word, i) for each in (left, right))
            sums = builder.fadd(sums, builder.fmul(*factors))
        return sums

    return dot


def _multiply_squares(dot: Emit, depth: int) -> Emit:
    """Emulate SMMLA and BFMMLA: [2 rows][2 columns] + [2 rows][depth] by [2 columns][depth], with `dot`."""

    def multiply(builder: Any, sums: Any, left: Any, right: Any) -> Any:
        def rows(vector: Any, order: list[int]) -> Any:
            cells = [row * depth + k for row in order for k in range(depth)]
            return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_I32, len(cells)), cells))

        left, right = rows(left, [0, 0, 1, 1]), rows(right, [0, 1, 0, 1])
        return dot(builder, sums, left, right)

    return multiply


def _round_to_bfloat(builder: Any, value: Any) -> Any:
    """Emulate VCVTNEPS2BF16: round to nearest even; NaN stays NaN."""
    bits = builder.bitcast(value, _of(_I32, value))
    kind = bits.type
    odd = builder.and_(builder.lshr(bits, _all(kind, 16)), _all(kind, 1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, _all(kind, 0x7FFF))), _all(kind, 16))
    halves = builder.select(builder.fcmp_unordered("uno", value, value), _all(kind, 0x7FC0), rounded)
    return builder.bitcast(builder.trunc(halves, _of(_I16, value)), _of(BFloat(), value))


def _round_two_to_bfloat(builder: Any, upper: Any, lower: Any) -> Any:
    """Emulate VCVTNE2PS2BF16: the second operand's elements come first."""
    halves = (builder.bitcast(_round_to_bfloat(builder, each), _of(_I16, each)) for each in (lower, upper))
    both = builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(_I32, 32), list(range(32))))
    return builder.bitcast(both, _of(BFloat(), both))


def _floor(builder: Any, value: Any) -> Any:
    return _intrinsic(builder, "llvm.floor.v16f32", value.type, value)


def _times_power(builder: Any, value: Any, power: Any, *_: Any) -> Any:
    """Emulate VSCALEFPS: value * 2 ** floor(power), by two factors that are float32 numbers."""
    bound = _all(power.type, 252.0)
    down = _intrinsic(builder, "llvm.minnum.v16f32", power.type, _floor(builder, power), bound)
    down = _intrinsic(builder, "llvm.maxnum.v16f32", power.type, down, builder.fneg(bound))
    whole = builder.fptosi(down, _of(_I32, power))
    half = builder.ashr(whole, _all(whole.type, 1))
    for part in (half, builder.sub(whole, half)):
        bits = builder.shl(builder.add(part, _all(part.type, 127)), _all(part.type, 23))
        value = builder.fmul(value, builder.bitcast(bits, power.type))
    return builder.select(builder.fcmp_unordered("uno", power, power), power, value)


def _about_inverse(builder: Any, value: Any, *_: Any) -> Any:
    """Emulate VRCP14PS: 1 / value with 14 correct bits."""
    exact = builder.bitcast(builder.fdiv(_all(value.type, 1.0), value), _of(_I32, value))
    return builder.bitcast(builder.and_(exact, _all(exact.type, 0xFFFFFE00)), value.type)


def _fraction(builder: Any, value: Any, *_: Any) -> Any:
    """Emulate VREDUCEPS as used here: value - floor(value), 0 for infinity."""
    size = _intrinsic(builder, "llvm.fabs.v16f32", value.type, value)
    is_infinite = builder.fcmp_ordered("==", size, _all(value.type, float("inf")))
    return builder.select(is_infinite, _all(value.type, 0.0), builder.fsub(value, _floor(builder, value)))


def _look_up(builder: Any, table: Any, codes: Any) -> Any:
    """Emulate TBL, and VPSHUFB of a table that is the same in both lanes: one of sixteen bytes, or 0 beyond."""
    found = _all(codes.type, 0)
    for i in range(16):
        one = _every(builder, table, table.type.count, i)
        every = builder.shuffle_vector(one, one, _all(_of(_I32, codes), 0))
        found = builder.select(builder.icmp_unsigned("==", codes, _all(codes.type, i)), every, found)
    return found


def _by_symbol(name: str) -> Emit:
    """Call one of the functions below, with tile numbers and addresses as int64."""

    def call(builder: Any, *values: Any) -> Any:
        words = [
            builder.ptrtoint(each, _I64)
            if isinstance(each.type, ir.PointerType)
            else builder.zext(each, _I64)
            if each.type.width < _I64.width
            else each
            for each in values
        ]
        return _intrinsic(builder, SYMBOL + name, ir.VoidType(), *words)

    return call


def _thread_key() -> int:
    """Return the key of memory that each thread has for itself."""
    key = ctypes.c_uint()
    assert ctypes.CDLL(None).pthread_key_create(ctypes.byref(key), None) == 0
    return key.value


_KEY = _thread_key()
_thread_memory = types.ExternalFunction("pthread_getspecific", types.int64(types.int32))
_keep_thread_memory = types.ExternalFunction("pthread_setspecific", types.int32(types.int32, types.int64))
_zeroed = types.ExternalFunction("calloc", types.int64(types.int64, types.int64))


@inline
def _unit():  # type: ignore[no-untyped-def]
    found = _thread_memory(_KEY)
    if found == 0:
        found = _zeroed(1, _UNIT_BYTES)
        _keep_thread_memory(_KEY, found)
    return found


@inline
def _tile_at(tile):  # type: ignore[no-untyped-def]
    return _unit() + _TILES + tile * _TILE


@inline
def _rows_of(tile):  # type: ignore[no-untyped-def]
    return load_u8(_unit() + _ROWS + tile)


def _tilezero(tile: int) -> None:
    for row in range(16):
        simd.store(_tile_at(tile) + row * _LINE, simd.splat(0.0))


def _tileloadd64(tile: int, address: int, stride: int) -> None:
    for row in range(16):
        simd.store(_tile_at(tile) + row * _LINE, simd.splat(0.0))
    for row in range(_rows_of(tile)):
        simd.store(_tile_at(tile) + row * _LINE, simd.load(address + row * stride))


def _tilestored64(tile: int, address: int, stride: int) -> None:
    for row in range(_rows_of(tile)):
        simd.store(address + row * stride, simd.load(_tile_at(tile) + row * _LINE))


def _product(dot: Any) -> Callable[..., None]:
    def multiply(c: int, a: int, b: int) -> None:
        for row in range(_rows_of(c)):
            at = row * _LINE
            sums = simd.load(_tile_at(c) + at)
            for word in range(16):
                sums = dot(sums, _tile_at(a) + at + word * 4, _tile_at(b) + word * _LINE)
            simd.store(_tile_at(c) + at, sums)

    return multiply


def _ldtilecfg(address: int) -> None:
    for word in range(0, _UNIT_BYTES, 8):  # the tiles are zeroed
        store_i64(_unit() + word, 0)
    for word in range(0, _LINE, 8):
        store_i64(_unit() + word, load_i64(address + word))


def _sttilecfg(address: int) -> None:
    for word in range(0, _LINE, 8):
        store_i64(address + word, load_i64(_unit() + word))


def _tilerelease() -> None:
    for word in range(0, _UNIT_BYTES, 8):  # no tile has a row
        store_i64(_unit() + word, 0)


_TILE_UNIT: dict[str, tuple[Callable[..., None], int]] = {  # by instruction, with the number of arguments
    "tilezero": (_tilezero, 1),
    "tileloadd64": (_tileloadd64, 3),
    "tilestored64": (_tilestored64, 3),
    "tdpbf16ps": (_product(dot_product.DOT_BF16.narrow), 3),
    "tdpbssd": (_product(dot_product.dot_i8_portable), 3),
    "ldtilecfg": (_ldtilecfg, 1),
    "sttilecfg": (_sttilecfg, 1),
    "tilerelease": (_tilerelease, 0),
}

EMULATED: dict[str, Emit] = {
    **{f"llvm.x86.{name}": _by_symbol(name) for name in _TILE_UNIT},
    "llvm.x86.avx2.pmadd.wd": _multiply_pairs,
    "llvm.x86.avx2.pmadd.ub.sw": _multiply_unsigned_pairs,
    "llvm.x86.avx2.pshuf.b": _look_up,
    "llvm.x86.avx2.psign.b": _with_signs,
    "llvm.x86.avx512.pmaddw.d.512": _multiply_pairs,
    "llvm.x86.avx512.vpdpbusd.256": _dot_integers(4, is_left_signed=False),
    "llvm.x86.avx512.vpdpbusd.512": _dot_integers(4, is_left_signed=False),
    "llvm.x86.avx512.vpdpwssd.512": _dot_integers(2),
    "llvm.x86.avx512bf16.dpbf16ps.512": _dot_bfloats(2),
    "llvm.x86.avx512bf16.cvtneps2bf16.512": _round_to_bfloat,
    "llvm.x86.avx512bf16.cvtne2ps2bf16.512": _round_two_to_bfloat,
    "llvm.x86.avx512.mask.scalef.ps.512": _times_power,
    "llvm.x86.avx512.rcp14.ps.512": _about_inverse,
    "llvm.x86.avx512.mask.reduce.ps.512": _fraction,
    "llvm.aarch64.neon.sdot.v4i32.v16i8": _dot_integers(4),
    "llvm.aarch64.neon.smmla.v4i32.v16i8": _multiply_squares(_dot_integers(8), 8),
    "llvm.aarch64.neon.bfdot.v4f32.v8bf16": _dot_bfloats(2),
    "llvm.aarch64.neon.bfmmla": _multiply_squares(_dot_bfloats(4), 4),
    "llvm.aarch64.neon.tbl1.v16i8": _look_up,
}

_intrinsic = instruction.call  # for instructions that every host has


def _call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Replace `instruction.call`."""
    emit = EMULATED.get(name)
    return _intrinsic(builder, name, result, *values) if emit is None else emit(builder, *values)


def _start() -> None:
    """Make this process compile every path for its host from now on, in a cache of its own."""
    for name, (function, count) in _TILE_UNIT.items():
        compiled = numba.cfunc(types.void(*[types.int64] * count), error_model="numpy")(function)
        _compiled.append(compiled)
        llvmlite.binding.add_symbol(SYMBOL + name, compiled.address)
    sources = cache.source_hash()
    instruction.call = _call
    dispatch.host_isas = lambda: ISAS  # type: ignore[assignment]
    cache.source_hash = lambda: f"{sources}-emulated"
    compilation.MAX_PROCESSES = 1  # a helper process would not emulate


_compiled: list[Any] = []  # functions that kernels call
_start()
