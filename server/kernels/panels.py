"""float32 rows, or bfloat16 panels, to the panels that a matmul reads: bfloat16, float32, or int8 with row scales.

Panels are [rows/16][K/k_tile][16][k_tile], which suits a tile load or a cache line of broadcasts. int8 is symmetric:
scale = max|x| / 127 over the row, so a row's codes depend on the row alone. rotation.py explains the rotation.
Activations for weights in groups have a scale for each 32 neighbours: blocks of sixteen rows are panels [K/64][16][64]
of int8, then [K/32][16] pairs of a float32 scale and an int32, -8 times the sum of the 32 codes.
"""

from __future__ import annotations

from typing import Any

from .attention.cache_elements import load_i8
from .isa import simd
from .isa.element_types import BFLOAT16, FLOAT32, Cell
from .isa.jit import inline
from .isa.memory import load_f32, store_f32, store_i32
from .rotation import of_row, rotation

K_TILE_16 = 32  # elements of a bfloat16 or float32 panel row
K_TILE_8 = 64  # elements of an int8 panel row
CHUNKS_BYTES = 20  # bytes of sixteen rows at one of k: their codes, and 8 bytes for each 32 codes
ROUNDER = 1.5 * 2**23  # adding and subtracting it rounds to a whole number, as store_i8 does


@inline
def _panel_row(row, width, k_tile):  # type: ignore[no-untyped-def]
    """Return the index of a row's first element; its next k_tile elements are 16 * k_tile further."""
    return (row // 16) * 16 * width + row % 16 * k_tile


@inline
def _of_panels(source, row, width, i):  # type: ignore[no-untyped-def]
    """Load sixteen of row `row` of bfloat16 panels at `source`."""
    return simd.load_bf16(
        source + (_panel_row(row, width, K_TILE_16) + i // K_TILE_16 * 16 * K_TILE_16 + i % K_TILE_16) * 2
    )


def _plain(load: Any, cell: Cell) -> Any:
    store, size = cell.store, cell.size

    @inline
    def pack(source, panels, row_scales, row, width, scratch):  # type: ignore[no-untyped-def]
        """Pack into row `row` of the panels."""
        first = _panel_row(row, width, K_TILE_16)
        for i in range(0, width, 16):
            at = first + (i // K_TILE_16) * 16 * K_TILE_16 + i % K_TILE_16
            store(panels + at * size, load(source, row, width, i))

    return pack


@inline
def _larger_magnitude(a, b):  # type: ignore[no-untyped-def]
    return simd.larger(simd.absolute(a), simd.absolute(b))


def _int8(load: Any) -> Any:
    @inline
    def pack(source, panels, row_scales, row, width, scratch):  # type: ignore[no-untyped-def]
        """Pack into row `row` of the panels, with its scale: NaN if a value is NaN or infinite."""
        highest = strange = zero = simd.splat(0.0)
        for i in range(0, width, 32):
            a, b = load(source, row, width, i), load(source, row, width, i + 16)
            highest = simd.larger(_larger_magnitude(a, b), highest)
            strange = simd.fma(simd.add(a, b), zero, strange)
        largest = simd.max_lanes(highest)
        inverse, scale = 0.0, simd.sum_lanes(strange)
        if largest > 0.0:
            inverse, scale = 127.0 / largest, largest / 127.0 + scale
        by = simd.splat(inverse)
        store_f32(row_scales + row * 4, scale)
        first = panels + _panel_row(row, width, K_TILE_8)
        for i in range(0, width, 64):
            for j in range(i, i + 64, 16):
                simd.store_i8(first + i * 16 + j - i, simd.mul(load(source, row, width, j), by))

    return pack


pack_i8 = _int8(of_row)


def _int8_rotated(load: Any) -> Any:
    rotate = rotation(load)

    @inline
    def pack(source, panels, row_scales, row, width, scratch):  # type: ignore[no-untyped-def]
        """Rotate the row in `scratch`, and pack it as `pack_i8` does."""
        rotate(source, row, width, scratch)
        pack_i8(scratch, panels, row_scales, row, width, scratch)

    return pack


def _int8_chunks(load: Any) -> Any:
    @inline
    def pack(source, panels, row_scales, row, width, scratch):  # type: ignore[no-untyped-def]
        """Pack into row `row` of the blocks. A chunk with NaN or infinity has a NaN scale."""
        block = panels + row // 16 * width * CHUNKS_BYTES
        sides, zero, rounder = block + 16 * width + row % 16 * 8, simd.splat(0.0), simd.splat(ROUNDER)
        for i in range(0, width, 32):
            a, b = load(source, row, width, i), load(source, row, width, i + 16)
            largest = simd.max_lanes(_larger_magnitude(a, b))
            inverse, scale = 0.0, simd.sum_lanes(simd.mul(simd.add(a, b), zero))
            if largest > 0.0:
                inverse, scale = 127.0 / largest, largest / 127.0 + scale
            by = simd.splat(inverse)
            a, b = simd.mul(a, by), simd.mul(b, by)
            at = block + i // 64 * 1024 + row % 16 * 64 + i % 64
            simd.store_i8(at, a)
            simd.store_i8(at + 16, b)
            a, b = simd.sub(simd.add(a, rounder), rounder), simd.sub(simd.add(b, rounder), rounder)
            side = sides + i * 4
            store_f32(side, scale)
            store_i32(side + 4, -8.0 * simd.sum_lanes(simd.add(a, b)))

    return pack


pack_i8_chunks, panels_to_i8_chunks = _int8_chunks(of_row), _int8_chunks(_of_panels)


def _rows_of(load: Any, size: int, k_tile: int) -> Any:
    @inline
    def rows_of(panels, row, width, to, scale):  # type: ignore[no-untyped-def]
        """Write row `row` of panels, times `scale`, as float32 to `to`."""
        first, by = panels + _panel_row(row, width, k_tile) * size, simd.splat(scale)
        for i in range(0, width, 16):
            at = (i // k_tile * 16 * k_tile + i % k_tile) * size
            simd.store(to + i * 4, simd.mul(load(first + at), by))

    return rows_of


@inline
def rows_of_i8_chunks(panels, row, width, to):  # type: ignore[no-untyped-def]
    """Write row `row` of blocks of sixteen as float32 to `to`.

    A block is [width/64][16][64] codes, then [width/32][16] pairs of a float32 scale and four bytes more.
    """
    block = panels + row // 16 * width * 20
    for i in range(0, width, 16):
        by = simd.splat(load_f32(block + 16 * width + row % 16 * 8 + i // 32 * 128))
        simd.store(to + i * 4, simd.mul(load_i8(block + i // 64 * 1024 + row % 16 * 64 + i % 64), by))


rows_of_bf16 = _rows_of(BFLOAT16.load, BFLOAT16.size, K_TILE_16)
rows_of_f32 = _rows_of(FLOAT32.load, FLOAT32.size, K_TILE_16)
rows_of_i8 = _rows_of(load_i8, 1, K_TILE_8)
pack_bf16, pack_f32 = _plain(of_row, BFLOAT16), _plain(of_row, FLOAT32)
panels_to_f32, panels_to_i8 = _plain(_of_panels, FLOAT32), _int8(_of_panels)
pack_i8_rotated, panels_to_i8_rotated = _int8_rotated(of_row), _int8_rotated(_of_panels)
