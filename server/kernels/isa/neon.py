"""Dot products and small matrix products in ARM's 128-bit registers; sixteen lanes are four registers.

A matrix instruction multiplies two rows of activations by two columns, eight bytes of k of each. For bfloat16 it equals
two of the dot products in sequence, with the same roundings (Arm ARM, BFMatMulAdd), so rows may be summed either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from . import instruction, simd
from .access import READ, pointer
from .dot_product import BFloat
from .memory import emitted

_LINE = 64  # bytes of sixteen columns at one word of k
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_V = ir.VectorType(ir.FloatType(), simd.LANES)
_QUAD = ir.VectorType(_I32, 4)  # a register as words
_REGISTERS = simd.LANES // 4


class _Cells(NamedTuple):
    """An element type: its dot product by words of four bytes, and the product of two rows by two columns."""

    inputs: Any  # type of a register of elements
    sums: Any  # type of a register of sums
    dot: str
    product: str


_I8_QUAD = ir.VectorType(ir.IntType(8), 16)
_INT8 = _Cells(_I8_QUAD, _QUAD, "llvm.aarch64.neon.sdot.v4i32.v16i8", "llvm.aarch64.neon.smmla.v4i32.v16i8")
_BF16 = _Cells(
    ir.VectorType(BFloat(), 8),
    ir.VectorType(ir.FloatType(), 4),
    "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
    "llvm.aarch64.neon.bfmmla",
)


def _registers(builder: Any, sums: Any, kind: Any) -> list[Any]:
    """Split sixteen lanes into four registers."""
    orders = ([4 * i + lane for lane in range(4)] for i in range(_REGISTERS))
    parts = (builder.shuffle_vector(sums, ir.Constant(_V, ir.Undefined), ir.Constant(_QUAD, order)) for order in orders)
    return [builder.bitcast(part, kind) for part in parts]


def _lanes(builder: Any, registers: Iterable[Any]) -> Any:
    """Join four registers to sixteen lanes."""
    a, b, c, d = (builder.bitcast(each, ir.VectorType(ir.FloatType(), 4)) for each in registers)
    eight, sixteen = (ir.Constant(ir.VectorType(_I32, n), list(range(n))) for n in (8, 16))
    return builder.shuffle_vector(builder.shuffle_vector(a, b, eight), builder.shuffle_vector(c, d, eight), sixteen)


def _load(builder: Any, address: Any, offset: int, kind: Any = _QUAD, align: int = 4) -> Any:
    at = builder.add(address, ir.Constant(_I64, offset))
    return builder.load(pointer(builder, at, kind, READ), align=align)


def _every(builder: Any, words: Any, lane: int) -> Any:
    """Broadcast one of the words."""
    return builder.shuffle_vector(words, ir.Constant(words.type, ir.Undefined), ir.Constant(_QUAD, [lane] * 4))


def _call(builder: Any, name: str, cells: _Cells, c: Any, a: Any, w: Any) -> Any:
    return instruction.call(
        builder, name, cells.sums, c, builder.bitcast(a, cells.inputs), builder.bitcast(w, cells.inputs)
    )


def _dot(cells: _Cells, lines: int) -> Any:
    """Return the step of `lines` words of a row times as many lines of weights, in order."""

    @emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
    def dot(builder: Any, sums: Any, word: Any, line: Any) -> Any:
        """Add to the sums of every column the products of each word's elements."""
        registers = _registers(builder, sums, cells.sums)
        words = _load(builder, word, 0, ir.VectorType(_I32, lines), align=2)
        for i in range(lines):
            every = _every(builder, words, i)
            for j in range(_REGISTERS):
                weights = _load(builder, line, i * _LINE + 16 * j)
                registers[j] = _call(builder, cells.dot, cells, registers[j], weights, every)
        return _lanes(builder, registers)

    return dot


LINES = 2  # of a step, with a word of a row each: four rows' sums, and the lines, stay in 32 registers
dot_i8, dot_bf16 = _dot(_INT8, LINES), _dot(_BF16, LINES)
dot_i8_line = _dot(_INT8, 1)


@emitted(simd.float32x16, simd.float32x16, types.int64, simd.float32x16)
def dot_codes(builder: Any, sums: Any, word: Any, codes: Any) -> Any:
    """Return sums + four codes of -128 to 127 times the four int8 at `word`, by SDOT."""
    registers, weights = _registers(builder, sums, _QUAD), _registers(builder, codes, _QUAD)
    every = _every(builder, _load(builder, word, 0, ir.VectorType(_I32, 1)), 0)
    return _lanes(
        builder, [_call(builder, _INT8.dot, _INT8, c, w, every) for c, w in zip(registers, weights, strict=True)]
    )


class RowPairs(NamedTuple):
    """Products of two rows, 64 bytes apart, by sixteen columns at two lines of weights; one value sums eight columns.

    A value's registers are squares [2 rows][2 columns].
    """

    left: Any  # (sums, word, line) -> sums of columns 0 to 7
    right: Any  # the same of columns 8 to 15


def _squares(cells: _Cells, first_column: int) -> Any:
    """Return the products of eight columns. Registers [4 columns][word] of two lines become [2 columns][2 words]."""
    zips = ([0, 4, 1, 5], [2, 6, 3, 7])

    @emitted(simd.float32x16, simd.float32x16, types.int64, types.int64)
    def products(builder: Any, sums: Any, word: Any, line: Any) -> Any:
        """Add to the sums the products of both rows' two words by those of eight columns."""
        registers, row = _registers(builder, sums, cells.sums), ir.VectorType(_I32, 2)
        rows = [_load(builder, word, offset, row, align=2) for offset in (0, _LINE)]
        both = builder.shuffle_vector(*rows, ir.Constant(_QUAD, [0, 1, 2, 3]))
        for i in range(_REGISTERS):
            at = 4 * first_column + 16 * (i // 2)
            words = (_load(builder, line, at), _load(builder, line, _LINE + at))
            weights = builder.shuffle_vector(*words, ir.Constant(_QUAD, zips[i % 2]))
            registers[i] = _call(builder, cells.product, cells, registers[i], both, weights)
        return _lanes(builder, registers)

    return products


pairs_i8, pairs_bf16 = (RowPairs(_squares(cells, 0), _squares(cells, 8)) for cells in (_INT8, _BF16))


def _row_of_squares(row: int) -> Callable[..., Any]:
    @emitted(simd.float32x16, simd.float32x16, simd.float32x16)
    def row_of(builder: Any, left: Any, right: Any) -> Any:
        """Return one row's sums of sixteen columns from the squares of two rows."""
        order = [4 * square + 2 * row + column for square in range(8) for column in range(2)]
        return builder.shuffle_vector(left, right, ir.Constant(ir.VectorType(_I32, simd.LANES), order))

    return row_of  # type: ignore[no-any-return]


first_row, second_row = _row_of_squares(0), _row_of_squares(1)
