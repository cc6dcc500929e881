"""Rotation of int8-rotated matrices and of their inputs along k.

Weights and activations are multiplied by the same orthogonal matrix, which changes no product but spreads an outlier
over 256 values, as in QuaRot (https://arxiv.org/abs/2404.00456). One scale for all of k is then as good as scales of
groups. Each step replaces four values that are 1, 4, 16 or K / 4 apart by half of their sum minus each of them. The
first three steps stay within 64 neighbours; without the last, the block with the outlier would decide the scale. This
Hadamard matrix leaves four equal values as they are, so heads or channels that agree do not add up to an outlier.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .isa import simd
from .isa.jit import HostFunction, inline
from .isa.memory import emitted

BLOCK = 64  # neighbours that are mixed

_V = ir.VectorType(ir.FloatType(), simd.LANES)
_VI = ir.VectorType(ir.IntType(32), simd.LANES)


@emitted(simd.float32x16, simd.float32x16)
def _mixed_lanes(builder: Any, value: Any) -> Any:
    """Mix lanes that are 1 apart, then those that are 4 apart."""
    for apart in (1, 4):
        total = value
        for distance in (apart, 2 * apart):
            partners = ir.Constant(_VI, [i ^ distance for i in range(simd.LANES)])
            total = builder.fadd(total, builder.shuffle_vector(total, ir.Constant(_V, ir.Undefined), partners))
        half = builder.fmul(total, ir.Constant(_V, [0.5] * simd.LANES))
        value = builder.fsub(half, value)
    return value


@inline
def _mixed(a, b, c, d):  # type: ignore[no-untyped-def]
    """Mix four vectors."""
    half = simd.mul(simd.add(simd.add(a, b), simd.add(c, d)), simd.splat(0.5))
    return simd.sub(half, a), simd.sub(half, b), simd.sub(half, c), simd.sub(half, d)


def _blocks(load: Any) -> Any:
    @inline
    def blocks(source, row, width, to):  # type: ignore[no-untyped-def]
        """Mix each 64 neighbours of a row that `load` reads, to float32 at `to`."""
        for i in range(0, width, BLOCK):
            a, b = load(source, row, width, i), load(source, row, width, i + 16)
            a, b, c, d = _mixed(a, b, load(source, row, width, i + 32), load(source, row, width, i + 48))
            at = to + i * 4
            simd.store(at, _mixed_lanes(a))
            simd.store(at + 64, _mixed_lanes(b))
            simd.store(at + 128, _mixed_lanes(c))
            simd.store(at + 192, _mixed_lanes(d))

    return blocks


@inline
def _quarters(row, width):  # type: ignore[no-untyped-def]
    """Mix values of a float32 row that are a quarter of it apart, in place."""
    for at in range(row, row + width, 64):  # a quarter of the row has `width` bytes
        a, b = simd.load(at), simd.load(at + width)
        a, b, c, d = _mixed(a, b, simd.load(at + 2 * width), simd.load(at + 3 * width))
        simd.store(at, a)
        simd.store(at + width, b)
        simd.store(at + 2 * width, c)
        simd.store(at + 3 * width, d)


def rotation(load: Any) -> Any:
    """Return the function `(source, row, width, to)` that rotates a row; `load(source, row, width, i)` reads 16."""
    blocks = _blocks(load)

    @inline
    def rotate(source, row, width, to):  # type: ignore[no-untyped-def]
        blocks(source, row, width, to)
        _quarters(to, width)

    return rotate


@inline
def of_row(source, row, width, i):  # type: ignore[no-untyped-def]
    """Load sixteen of a float32 row at `source`."""
    return simd.load(source + i * 4)


_rotate, _in_blocks = rotation(of_row), _blocks(of_row)


@inline
def rotate_back(row, width):  # type: ignore[no-untyped-def]
    """Undo the rotation of a float32 row, in place: each step is its own inverse."""
    _quarters(row, width)
    _in_blocks(row, 0, width, row)


@HostFunction
def rotate_rows(source: int, target: int, rows: int, width: int) -> None:
    """Rotate float32 rows that lie one after the other."""
    for row in range(rows):
        at = row * width * 4
        _rotate(source + at, 0, width, target + at)


@HostFunction
def rotate_rows_back(rows: int, count: int, width: int) -> None:
    """Undo the rotation of `count` rows at `rows`, in place."""
    for row in range(count):
        rotate_back(rows + row * width * 4, width)
