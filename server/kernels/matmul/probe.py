"""Peak speed of this host's product units with operands in the nearest cache: the upper limit of every prefill.

Each kernel multiplies the same small panel by the same small tiles repeatedly, reusing what it loads as far as
registers allow. The sums run over all rounds and are stored, so that nothing is optimized away and all can be checked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from ..isa import amx, dot_product, instruction, neon, nibbles, simd
from ..isa.access import READ, pointer
from ..isa.jit import Kernel, inline, made_kernel
from ..isa.memory import emitted, load_i64
from ..records import offsets

TILE = 1024  # bytes: sixteen rows of 64, or sixteen words of k of sixteen columns


class ProductOperands(NamedTuple):
    """Operands of a probe: an area for each worker, `stride` bytes apart; `Block` has its layout."""

    area: int
    stride: int
    k_tiles: int  # tiles of sixteen words
    rounds: int


class Block(NamedTuple):
    """An area: panels [rows/16][k_tiles][16][16 words], weights [columns/16][k_tiles][16 words][16], then the sums.

    A word is one float32, two bfloat16 or int16, or four int8. Sums are float32 or int32 [columns/16][rows][16].
    """

    rows: int
    columns: int

    def weights_at(self, k_tiles: int) -> int:
        """Return the offset of the weights in the area."""
        return -(-self.rows // 16) * k_tiles * TILE

    def sums_at(self, k_tiles: int) -> int:
        """Return the offset of the sums in the area."""
        return self.weights_at(k_tiles) + self.columns // 16 * k_tiles * TILE

    def num_bytes(self, k_tiles: int) -> int:
        """Return the size of the area in bytes."""
        return self.sums_at(k_tiles) + self.rows * self.columns * 4


TILES, WIDE, NARROW, PAIRED = Block(32, 32), Block(8, 32), Block(6, 16), Block(4, 16)
PRODUCT = offsets(ProductOperands)


@inline
def _area(operands, worker):  # type: ignore[no-untyped-def]
    return load_i64(operands + PRODUCT.area) + worker * load_i64(operands + PRODUCT.stride)


def _on_tiles(dot: Any) -> Any:
    """Return the product with four accumulators, two tiles of activations and two of weights: one load a product."""
    dot_0_4_6, dot_1_4_7, dot_2_5_6, dot_3_5_7 = dot(0, 4, 6), dot(1, 4, 7), dot(2, 5, 6), dot(3, 5, 7)

    @inline
    def multiply(operands, worker):  # type: ignore[no-untyped-def]
        k_tiles, a0 = load_i64(operands + PRODUCT.k_tiles), _area(operands, worker)
        a1, b0 = a0 + k_tiles * TILE, a0 + 2 * k_tiles * TILE
        b1, sums = b0 + k_tiles * TILE, b0 + 2 * k_tiles * TILE
        amx.configure(16)
        amx.zero0()
        amx.zero1()
        amx.zero2()
        amx.zero3()
        for _ in range(load_i64(operands + PRODUCT.rounds)):
            for k in range(0, k_tiles * TILE, TILE):
                amx.load4(a0 + k, 64)
                amx.load6(b0 + k, 64)
                dot_0_4_6()
                amx.load7(b1 + k, 64)
                dot_1_4_7()
                amx.load5(a1 + k, 64)
                dot_2_5_6()
                dot_3_5_7()
        amx.store0(sums, 64)
        amx.store1(sums + 2 * TILE, 64)
        amx.store2(sums + TILE, 64)
        amx.store3(sums + 3 * TILE, 64)
        amx.release()

    return multiply


def _wide(dot: Any) -> Any:
    """Return the product of eight rows by two column tiles: sixteen of 32 vector registers accumulate."""

    @inline
    def multiply(operands, worker):  # type: ignore[no-untyped-def]
        k_tiles, a = load_i64(operands + PRODUCT.k_tiles), _area(operands, worker)
        b0, sums = a + k_tiles * TILE, a + 3 * k_tiles * TILE
        c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = d0 = d1 = d2 = d3 = d4 = d5 = d6 = d7 = simd.splat(0.0)
        for _ in range(load_i64(operands + PRODUCT.rounds)):
            for word in range(16 * k_tiles):
                at, left = a + word // 16 * TILE + word % 16 * 4, b0 + word * 64
                right = left + k_tiles * TILE
                c0, d0 = dot(c0, at, left), dot(d0, at, right)
                c1, d1 = dot(c1, at + 64, left), dot(d1, at + 64, right)
                c2, d2 = dot(c2, at + 128, left), dot(d2, at + 128, right)
                c3, d3 = dot(c3, at + 192, left), dot(d3, at + 192, right)
                c4, d4 = dot(c4, at + 256, left), dot(d4, at + 256, right)
                c5, d5 = dot(c5, at + 320, left), dot(d5, at + 320, right)
                c6, d6 = dot(c6, at + 384, left), dot(d6, at + 384, right)
                c7, d7 = dot(c7, at + 448, left), dot(d7, at + 448, right)
        simd.store_four(sums, c0, c1, c2, c3)
        simd.store_four(sums + 256, c4, c5, c6, c7)
        simd.store_four(sums + 512, d0, d1, d2, d3)
        simd.store_four(sums + 768, d4, d5, d6, d7)

    return multiply


def _narrow(dot: Any) -> Any:
    """Return the product of six rows by one column tile, for hosts where sixteen lanes are two of sixteen registers."""

    @inline
    def multiply(operands, worker):  # type: ignore[no-untyped-def]
        k_tiles, a = load_i64(operands + PRODUCT.k_tiles), _area(operands, worker)
        b, sums = a + k_tiles * TILE, a + 2 * k_tiles * TILE
        c0 = c1 = c2 = c3 = c4 = c5 = simd.splat(0.0)
        for _ in range(load_i64(operands + PRODUCT.rounds)):
            for word in range(16 * k_tiles):
                at, line = a + word // 16 * TILE + word % 16 * 4, b + word * 64
                c0, c1 = dot(c0, at, line), dot(c1, at + 64, line)
                c2, c3 = dot(c2, at + 128, line), dot(c3, at + 192, line)
                c4, c5 = dot(c4, at + 256, line), dot(c5, at + 320, line)
        simd.store_four(sums, c0, c1, c2, c3)
        simd.store(sums + 256, c4)
        simd.store(sums + 320, c5)

    return multiply


def _paired(pairs: neon.RowPairs) -> Any:
    """Return the product of four rows by one column tile, two rows and two words at a time.

    Half of 32 registers of 128 bits accumulate.
    """
    left, right = pairs

    @inline
    def multiply(operands, worker):  # type: ignore[no-untyped-def]
        k_tiles, a = load_i64(operands + PRODUCT.k_tiles), _area(operands, worker)
        b, sums = a + k_tiles * TILE, a + 2 * k_tiles * TILE
        c0 = c1 = d0 = d1 = simd.splat(0.0)
        for _ in range(load_i64(operands + PRODUCT.rounds)):
            for word in range(0, 16 * k_tiles, 2):
                at, line = a + word // 16 * TILE + word % 16 * 4, b + word * 64
                c0, c1 = left(c0, at, line), right(c1, at, line)
                d0, d1 = left(d0, at + 128, line), right(d1, at + 128, line)
        simd.store_four(
            sums, neon.first_row(c0, c1), neon.second_row(c0, c1), neon.first_row(d0, d1), neon.second_row(d0, d1)
        )

    return multiply


def _vnni(bits: int) -> Any:
    """Return the product of four signed bytes by four unsigned ones, by VPDPBUSD in registers of `bits` bits."""
    lanes, size = bits // 32, bits // 8
    whole, part = ir.VectorType(ir.IntType(32), simd.LANES), ir.VectorType(ir.IntType(32), lanes)
    codes = ir.VectorType(ir.IntType(8), size)

    @emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
    def dot_vnni(builder: Any, sums: Any, word: Any, line: Any) -> Any:
        """Return sums + the products; int32 sums travel as the bits of float32 lanes."""
        name = f"llvm.x86.avx512.vpdpbusd.{bits}"
        one = builder.load(pointer(builder, word, ir.IntType(32), READ), align=4)
        first = builder.insert_element(ir.Constant(part, ir.Undefined), one, ir.Constant(ir.IntType(32), 0))
        every = builder.shuffle_vector(first, first, ir.Constant(part, [0] * lanes))
        total, weights = builder.bitcast(sums, whole), builder.load(pointer(builder, line, whole, READ), align=4)
        parts = []
        for start in range(0, simd.LANES, lanes):
            order = ir.Constant(part, list(range(start, start + lanes)))
            c, w = (builder.shuffle_vector(value, value, order) for value in (total, weights))
            factors = builder.bitcast(w, codes), builder.bitcast(every, codes)
            parts.append(instruction.call(builder, name, part, c, *factors))
        both = ir.Constant(whole, list(range(simd.LANES)))
        total = parts[0] if len(parts) == 1 else builder.shuffle_vector(parts[0], parts[1], both)
        return builder.bitcast(total, ir.VectorType(ir.FloatType(), simd.LANES))

    return dot_vnni


@inline
def _dot_u8_avx2(sums, word, line):  # type: ignore[no-untyped-def]
    return nibbles.dot_u8_avx2(sums, word, simd.load(line))


def _probe(name: str, multiply: Any) -> Kernel:
    @inline
    def products(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        multiply(operands, worker)

    return made_kernel(f"products_{name}", products)


products_i8_amx, products_bf16_amx = (
    _probe("i8_amx", _on_tiles(amx.dot_i8)),
    _probe("bf16_amx", _on_tiles(amx.dot_bf16)),
)
products_bf16_avx512_bf16 = _probe("bf16_avx512_bf16", _wide(dot_product.dot_bf16_avx512))
products_i8_avx512_vnni, products_i8_avx2_vnni = (
    _probe("i8_avx512_vnni", _wide(_vnni(512))),
    _probe("i8_avx2_vnni", _narrow(_vnni(256))),
)
products_i16_avx512 = _probe("i16_avx512", _wide(dot_product.dot_i16_pairs_avx512))
products_i16_avx2 = _probe("i16_avx2", _narrow(dot_product.dot_i16_pairs_avx2))
products_u8_avx2, products_i8_narrow = (
    _probe("u8_avx2", _narrow(_dot_u8_avx2)),
    _probe("i8_narrow", _narrow(dot_product.dot_i8_portable)),
)
products_i8_neon_i8mm, products_bf16_neon_i8mm = (
    _probe("i8_neon_i8mm", _paired(neon.pairs_i8)),
    _probe("bf16_neon_i8mm", _paired(neon.pairs_bf16)),
)
products_i8_neon_dot = _probe("i8_neon_dot", _narrow(neon.dot_i8_line))
products_f32_wide, products_f32_narrow = (
    _probe("f32_wide", _wide(dot_product.dot_f32)),
    _probe("f32_narrow", _narrow(dot_product.dot_f32)),
)
