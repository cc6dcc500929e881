"""One step of an inner product on lanes: a word of activations times sixteen columns of weights, added to their sums.

A word is 4 bytes: one float32, two bfloat16 or four int8 neighbours in k; a cache line of weights holds the same k of
sixteen columns. If weights are 8-bit codes and activations bfloat16, a line takes 8 bytes of activations. int32 sums
travel as the bits of float32 lanes, so that one loop serves every format.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from . import instruction, simd
from .access import READ, WRITE, pointer
from .jit import inline
from .memory import NOTHING, emitted, load_f32

_I16, _I32 = ir.IntType(16), ir.IntType(32)
_V = ir.VectorType(ir.FloatType(), simd.LANES)
_PAIRS = ir.VectorType(_I16, 2 * simd.LANES)
_VI = ir.VectorType(_I32, simd.LANES)


def every_word(builder: Any, word: Any) -> Any:
    """Broadcast the word to every lane."""
    one = builder.load(pointer(builder, word, _I32, READ), align=2)
    first = builder.insert_element(ir.Constant(_VI, ir.Undefined), one, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, ir.Constant(_VI, ir.Undefined), ir.Constant(_VI, [0] * simd.LANES))


def _word_and_line(builder: Any, word: Any, line: Any) -> tuple[Any, Any]:
    """Load the word in every lane, and the line, both as int32 lanes."""
    return every_word(builder, word), builder.load(pointer(builder, line, _VI, READ), align=4)


class BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


def _floats_of_pair(builder: Any, words: Any) -> tuple[Any, Any]:
    """Return the first and the second bfloat16 of each lane, as float32."""
    even = builder.shl(words, ir.Constant(_VI, [16] * simd.LANES))
    odd = builder.and_(words, ir.Constant(_VI, [0xFFFF0000] * simd.LANES))
    return builder.bitcast(even, _V), builder.bitcast(odd, _V)


@inline
def dot_f32(sums, word, line):  # type: ignore[no-untyped-def]
    """Return sums + a * w."""
    return simd.fma(simd.splat(load_f32(word)), simd.load(line), sums)


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_bf16_avx512(builder: Any, sums: Any, word: Any, line: Any) -> Any:
    """Return sums + a0 * w0 + a1 * w1 by VDPBF16PS."""
    element = ir.VectorType(BFloat(), 32)
    a, w = (builder.bitcast(x, element) for x in _word_and_line(builder, word, line))
    return instruction.call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", _V, sums, a, w)


def _shifted(builder: Any, line: Any, byte: int, right: int) -> Any:
    """Move each lane's byte to the top, then right with its sign."""
    top = builder.shl(line, ir.Constant(_VI, [24 - 8 * byte] * simd.LANES)) if byte < 3 else line
    return builder.ashr(top, ir.Constant(_VI, [right] * simd.LANES))


def float_of_int8(builder: Any, line: Any, byte: int) -> Any:
    """Return each lane's int8 at `byte` as float32."""
    return builder.sitofp(_shifted(builder, line, byte, 24), _V)


def _float_of_float8(mantissa_bits: int, bias: int) -> Any:
    """Return the conversion of float8: move the bits to float32's places and correct the bias by an exact product."""
    places = 0x80000000 | 0x7F << (23 - mantissa_bits)

    def convert(builder: Any, line: Any, byte: int) -> Any:
        moved = _shifted(builder, line, byte, 1 + mantissa_bits)
        bits = builder.and_(moved, ir.Constant(_VI, [places] * simd.LANES))
        return builder.fmul(builder.bitcast(bits, _V), ir.Constant(_V, [2.0 ** (127 - bias)] * simd.LANES))

    return convert


float_of_e4m3, float_of_e5m2 = _float_of_float8(3, 7), _float_of_float8(2, 15)


def _bf16_at(builder: Any, word: Any, count: int) -> list[Any]:
    """Load `count` bfloat16 at `word` as float32, each in every lane."""
    words = (builder.add(word, ir.Constant(word.type, 2 * i)) for i in range(0, count, 2))
    return [each for at in words for each in _floats_of_pair(builder, every_word(builder, at))]


def _f32_at(builder: Any, word: Any, count: int) -> list[Any]:
    words = (builder.add(word, ir.Constant(word.type, 4 * i)) for i in range(count))
    return [builder.bitcast(every_word(builder, at), _V) for at in words]


def _pair_of_line(builder: Any, line: Any) -> list[Any]:
    return list(_floats_of_pair(builder, line))


def _codes_of_line(convert: Any) -> Any:
    return lambda builder, line: [convert(builder, line, byte) for byte in range(4)]


def _dot_floats(activations: Any, weights: Any) -> Any:
    """Return the step of a few float32 of a row and of each column; each product is rounded once into the sum."""

    @emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
    def dot(builder: Any, sums: Any, word: Any, line: Any) -> Any:
        """Return sums + a0 * w0 + a1 * w1 + ..."""
        columns = weights(builder, builder.load(pointer(builder, line, _VI, READ), align=4))
        for a, w in zip(activations(builder, word, len(columns)), columns, strict=True):
            sums = instruction.call(builder, "llvm.fma.v16f32", _V, a, w, sums)
        return sums

    return dot


class Dots(NamedTuple):
    """Steps that add the same products in the same order: of bfloat16 activations, and of widened ones."""

    narrow: Any
    wide: Any


def _both(weights: Any) -> Dots:
    return Dots(_dot_floats(_bf16_at, weights), _dot_floats(_f32_at, weights))


DOT_BF16 = _both(_pair_of_line)
DOT_I8_CODES, DOT_E4M3 = _both(_codes_of_line(float_of_int8)), _both(_codes_of_line(float_of_e4m3))
DOT_E5M2 = _both(_codes_of_line(float_of_e5m2))


def _unsigned(builder: Any, words: Any) -> Any:
    """Add 128 to signed bytes by inverting their top bits: VPDPBUSD multiplies unsigned by signed bytes."""
    # Hidden from LLVM, which inverts words in general registers: those are broadcast by units that multiply too.
    floats = ir.VectorType(ir.FloatType(), words.type.count)
    bits = builder.bitcast(ir.Constant(words.type, [0x80808080] * floats.count), floats)
    bits = instruction.call(builder, f"llvm.arithmetic.fence.v{floats.count}f32", floats, bits)
    return builder.xor(words, builder.bitcast(bits, words.type))


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_i8_avx512_vnni(builder: Any, sums: Any, word: Any, line: Any) -> Any:
    """Return sums + sum of four (a + 128) * w by VPDPBUSD, in 512-bit registers."""
    a, w = _word_and_line(builder, word, line)
    total, a = builder.bitcast(sums, _VI), _unsigned(builder, a)
    total = instruction.call(builder, "llvm.x86.avx512.vpdpbusd.512", _VI, total, *_as_bytes(builder, a, w, 64))
    return builder.bitcast(total, _V)


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_i8_avx2_vnni(builder: Any, sums: Any, word: Any, line: Any) -> Any:
    """Return sums + sum of four (a + 128) * w by VPDPBUSD, in two 256-bit registers (AVX-VNNI)."""
    a, w = _word_and_line(builder, word, line)
    total, half = builder.bitcast(sums, _VI), ir.VectorType(_I32, 8)
    x, halves = _unsigned(builder, _part(builder, a, 0)), []
    for part in range(2):
        c, y = (_part(builder, v, part) for v in (total, w))
        halves.append(instruction.call(builder, "llvm.x86.avx512.vpdpbusd.256", half, c, *_as_bytes(builder, x, y, 32)))
    total = builder.shuffle_vector(*halves, ir.Constant(_VI, list(range(16))))
    return builder.bitcast(total, _V)


def _part(builder: Any, vector: Any, part: int) -> Any:
    """Return half of sixteen int32."""
    order = ir.Constant(ir.VectorType(_I32, 8), [8 * part + i for i in range(8)])
    return builder.shuffle_vector(vector, ir.Constant(_VI, ir.Undefined), order)


def _as_bytes(builder: Any, a: Any, w: Any, count: int) -> list[Any]:
    return [builder.bitcast(each, ir.VectorType(ir.IntType(8), count)) for each in (a, w)]


def _halves(builder: Any, words: Any) -> tuple[Any, Any]:
    """Split each lane's four int8 into those at even and at odd places, as pairs of int16."""
    pairs, eight = builder.bitcast(words, _PAIRS), ir.Constant(_PAIRS, [8] * 32)
    return builder.ashr(builder.shl(pairs, eight), eight), builder.ashr(pairs, eight)


def add_pairs(builder: Any, sums: Any, a: Any, w: Any, bits: int) -> Any:
    """Return sums + a0 * w0 + a1 * w1 of int16 pairs by VPMADDWD in registers of `bits` bits."""
    lanes, name = bits // 32, {256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512"}[bits]
    part, pairs, parts = ir.VectorType(_I32, lanes), ir.VectorType(_I16, 2 * lanes), []
    for start in range(0, simd.LANES, lanes):
        order = ir.Constant(part, list(range(start, start + lanes)))
        x, y = (builder.shuffle_vector(v, ir.Constant(_VI, ir.Undefined), order) for v in (a, w))
        parts.append(instruction.call(builder, name, part, builder.bitcast(x, pairs), builder.bitcast(y, pairs)))
    both = ir.Constant(_VI, list(range(simd.LANES)))
    return builder.add(sums, parts[0] if len(parts) == 1 else builder.shuffle_vector(*parts, both))


def _dot_pairs(activations: Any, bits: int) -> Any:
    """Return the step of four int8, or int16, by VPMADDWD; int16 holds every code and int32 every sum, exactly."""

    @emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
    def dot(builder: Any, sums: Any, word: Any, line: Any) -> Any:
        """Return sums + sum of four a * w."""
        total = builder.bitcast(sums, _VI)
        weights = _halves(builder, builder.load(pointer(builder, line, _VI, READ), align=4))
        for a, w in zip(activations(builder, word), weights, strict=True):
            total = add_pairs(builder, total, builder.bitcast(a, _VI), builder.bitcast(w, _VI), bits)
        return builder.bitcast(total, _V)

    return dot


def _codes_at(builder: Any, word: Any) -> tuple[Any, Any]:
    return _halves(builder, every_word(builder, word))


def _widened_at(builder: Any, word: Any) -> tuple[Any, Any]:
    """Load four int8 that `widen_i8` has widened."""
    odd = builder.add(word, ir.Constant(word.type, 64))
    return every_word(builder, word), every_word(builder, odd)


dot_i8_avx512, dot_i16_avx512 = _dot_pairs(_codes_at, 512), _dot_pairs(_widened_at, 512)


def _dot_words(bits: int) -> Any:
    """Return the step of two int16 at `word` times sixteen columns of two int16 at `line`."""

    @emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
    def dot(builder: Any, sums: Any, word: Any, line: Any) -> Any:
        """Return sums + a0 * w0 + a1 * w1."""
        return builder.bitcast(
            add_pairs(builder, builder.bitcast(sums, _VI), *_word_and_line(builder, word, line), bits), _V
        )

    return dot


dot_i16_pairs_avx2, dot_i16_pairs_avx512 = _dot_words(256), _dot_words(512)


@emitted(types.void, types.int64, types.int64)
def widen_i8(builder: Any, source: Any, target: Any) -> Any:
    """Widen 64 int8 to 128 bytes: sixteen int16 pairs of the even places of each four, then those of the odd places."""
    halves = _halves(builder, builder.load(pointer(builder, source, _VI, READ), align=4))
    for i, half in enumerate(halves):
        at = builder.add(target, ir.Constant(target.type, 64 * i))
        builder.store(half, pointer(builder, at, _PAIRS, WRITE), align=4)
    return NOTHING


@inline
def widen_bf16(source, target):  # type: ignore[no-untyped-def]
    """Widen 32 bfloat16 to 128 bytes of float32."""
    simd.store(target, simd.load_bf16(source))
    simd.store(target + 64, simd.load_bf16(source + 32))


@emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
def dot_i8_portable(builder: Any, sums: Any, word: Any, line: Any) -> Any:
    """Return sums + sum of four a * w, in int32."""
    a, w = _word_and_line(builder, word, line)
    total = builder.bitcast(sums, _VI)
    for byte in range(4):
        up, down = ir.Constant(_VI, [24 - 8 * byte] * simd.LANES), ir.Constant(_VI, [24] * simd.LANES)
        x, y = (builder.ashr(builder.shl(v, up), down) for v in (a, w))
        total = builder.add(total, builder.mul(x, y))
    return builder.bitcast(total, _V)


@emitted(simd.float32x16, simd.float32x16)
def float_of_sums(builder: Any, sums: Any) -> Any:
    """Return sixteen int32 sums as float32."""
    return builder.sitofp(builder.bitcast(sums, _VI), _V)


@emitted(simd.float32x16, simd.float32x16, types.int64)
def int_sums(builder: Any, sums: Any, offsets: Any) -> Any:
    """Return int32 sums as float32, minus 128 times the column sums at `offsets` (0 for none)."""
    total = builder.bitcast(sums, _VI)
    has_offsets = builder.icmp_signed("!=", offsets, ir.Constant(ir.IntType(64), 0))
    with builder.if_else(has_offsets) as (then, otherwise):
        with then:
            column = builder.load(pointer(builder, offsets, _VI, READ), align=4)
            less = builder.sub(total, builder.shl(column, ir.Constant(_VI, [7] * simd.LANES)))
            then_block = builder.block
        with otherwise:
            other_block = builder.block
    result = builder.phi(_VI)
    result.add_incoming(less, then_block)
    result.add_incoming(total, other_block)
    return builder.sitofp(result, _V)
