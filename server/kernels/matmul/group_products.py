"""Inner loops of the matmuls of weights in groups: sums over all of k of one row, of four or of sixteen.

The codes of 32 of k are summed as int32, beginning at -8 times the sum of the activations, and then scaled into a
float32 sum. k runs in order, whichever rows are multiplied together, so an element's sum has one order whatever T or
the number of workers. group_lanes.py has the layouts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...device.layout import GROUP_SCALE_BYTES
from ..isa import simd
from ..isa.dot_product import float_of_sums
from ..isa.jit import inline
from ..isa.memory import hidden, load_f32, prefetch, stack_lines
from .lane_products import ROWS, SUMS, store_tiles
from .loop import AHEAD, LINE

CHUNK = 32  # neighbours in k that are summed as whole numbers; a group has one or more chunks
PANEL, SIDES = 1024, 16 * 8  # bytes of sixteen rows of activations: 64 codes each, and one pair each
BLOCK = PANEL + 2 * SIDES
SCALES = 16 * GROUP_SCALE_BYTES  # of a group of sixteen columns


class Unpacked(NamedTuple):
    """How the codes of a chunk are unpacked to the stack, once for up to sixteen rows."""

    line: int  # bytes of sixteen columns at four of k
    unpack: Any  # (address of codes at eight of k, target)
    dot: Any  # (sums, word, address of a line) -> sums


class Codes(NamedTuple):
    """How a format's codes are read and multiplied."""

    step: int  # bytes of sixteen columns at eight of k
    low: Any  # (address of codes) -> bytes of the first half of k
    high: Any
    first_sums: Any  # (address of the pair's int32) -> initial sums of a chunk, or their correction at its end
    load_scales: Any  # (address) -> sixteen columns' scales
    dot: Any  # (sums, word, codes) -> sums
    begin: Any  # (address of the pair's int32) -> sums
    number: Any  # (sums, that address) -> float32 of them
    is_by_two: bool = False  # four rows by two column tiles at once, where there are 32 registers of 512 bits
    unpacked: Unpacked | None = None  # for more than one row, where there are 16 registers of 256 bits

    @property
    def chunk_bytes(self) -> int:
        """Bytes of sixteen columns."""
        return CHUNK // 8 * self.step


@inline
def whole(sums, word):  # type: ignore[no-untyped-def]
    """Return sums that began at `first_sums` as float32."""
    return float_of_sums(sums)


def codes_of(step: int, halves: tuple[Any, Any], first_sums: Any, load_scales: Any, dot: Any) -> Codes:
    """Return codes whose products are summed as int32."""
    return Codes(step, *halves, first_sums, load_scales, dot, first_sums, whole)


def halves_in_memory(codes: Codes) -> Unpacked:
    """Return the unpacking of both halves of codes, which are then multiplied as they are."""
    low, high, dot = codes.low, codes.high, codes.dot

    @inline
    def unpack(source, target):  # type: ignore[no-untyped-def]
        simd.store(target, low(source))
        simd.store(target + LINE, high(source))

    @inline
    def dot_line(sums, word, line):  # type: ignore[no-untyped-def]
        return dot(sums, word, simd.load(line))

    return Unpacked(LINE, unpack, dot_line)


def _added(codes: Codes, has_shifts: bool) -> Any:
    first, number = codes.first_sums, codes.number

    @inline
    def added(total, sums, scales, shifts, sides):  # type: ignore[no-untyped-def]
        """Return the total plus one chunk's sums, of one row and column tile."""
        by = simd.mul(number(sums, sides + 4), scales)
        if has_shifts:
            by = simd.fma(float_of_sums(first(sides + 4)), shifts, by)
        return simd.fma(by, simd.splat(load_f32(sides)), total)

    return added


class Tiles(NamedTuple):
    """Column tiles side by side at the first of k, and the bytes from each chunk or group to the next."""

    codes: Any
    scales: Any
    shifts: Any  # equal to scales if there are none
    chunk: Any
    group: Any
    shift: Any  # log2 of the chunks of a group
    chunks: Any


def one_row(codes: Codes, has_shifts: bool) -> Any:
    """Return the sums over all of k of one row by two column tiles."""
    low, high, dot, begin, load_scales = codes.low, codes.high, codes.dot, codes.begin, codes.load_scales
    added, step, next_tile = _added(codes, has_shifts), codes.step, codes.chunk_bytes

    @inline
    def row_sums(a, sides, at, width, sums):  # type: ignore[no-untyped-def]
        f = g = simd.splat(0.0)
        turns = hidden(4)
        b1, last = (width - 1) * next_tile, (width - 1) * SCALES
        for i in range(at.chunks):
            word, b, group = a + (i // 2) * PANEL + i % 2 * CHUNK, at.codes + i * at.chunk, (i >> at.shift) * at.group
            c = d = begin(sides + 4)
            for j in range(turns):
                for line in range(AHEAD, AHEAD + step, LINE):
                    prefetch(b + j * step + line)
                    prefetch(b + b1 + j * step + line)
                c, d = dot(c, word, low(b + j * step)), dot(d, word, low(b + b1 + j * step))
                c, d = dot(c, word + 4, high(b + j * step)), dot(d, word + 4, high(b + b1 + j * step))
                word += 8
            s, z = at.scales + group, at.shifts + group
            f = added(f, c, load_scales(s), load_scales(z), sides)
            g = added(g, d, load_scales(s + last), load_scales(z + last), sides)
            sides += SIDES
        simd.store(sums, f)
        simd.store(sums + LINE, g)

    return row_sums


def by_tile(codes: Codes, has_shifts: bool) -> Any:
    """Return the sums of four rows by one column tile, then the other: those of a chunk take eight of 16 registers."""
    low, high, dot, begin, load_scales = codes.low, codes.high, codes.dot, codes.begin, codes.load_scales
    added, step, next_tile = _added(codes, has_shifts), codes.step, codes.chunk_bytes

    @inline
    def of_tile(a, sides, at, tile, sums):  # type: ignore[no-untyped-def]
        f0 = f1 = f2 = f3 = simd.splat(0.0)
        turns = hidden(4)  # if unrolled, rows would be multiplied one by one and codes go through memory
        for i in range(at.chunks):
            word, b = a + (i // 2) * PANEL + i % 2 * CHUNK, at.codes + tile * next_tile + i * at.chunk
            c0, c1, c2, c3 = begin(sides + 4), begin(sides + 12), begin(sides + 20), begin(sides + 28)
            for j in range(turns):
                left, right = low(b + j * step), high(b + j * step)
                c0, c1 = dot(c0, word, left), dot(c1, word + 64, left)
                c2, c3 = dot(c2, word + 128, left), dot(c3, word + 192, left)
                c0, c1 = dot(c0, word + 4, right), dot(c1, word + 68, right)
                c2, c3 = dot(c2, word + 132, right), dot(c3, word + 196, right)
                word += 8
            group = (i >> at.shift) * at.group + tile * SCALES
            s, z = load_scales(at.scales + group), load_scales(at.shifts + group)
            f0, f1 = added(f0, c0, s, z, sides), added(f1, c1, s, z, sides + 8)
            f2, f3 = added(f2, c2, s, z, sides + 16), added(f3, c3, s, z, sides + 24)
            sides += SIDES
        simd.store(sums, f0)
        simd.store(sums + SUMS, f1)
        simd.store(sums + 2 * SUMS, f2)
        simd.store(sums + 3 * SUMS, f3)

    @inline
    def four_rows(a, sides, at, width, sums, count):  # type: ignore[no-untyped-def]
        for tile in range(width):
            of_tile(a, sides, at, tile, sums + tile * LINE)

    return four_rows


def by_two_tiles(codes: Codes, has_shifts: bool) -> Any:
    """Return the same for both column tiles at once."""
    low, high, dot, begin, load_scales = codes.low, codes.high, codes.dot, codes.begin, codes.load_scales
    added, step, next_tile = _added(codes, has_shifts), codes.step, codes.chunk_bytes

    @inline
    def four_rows(a, sides, at, width, sums, count):  # type: ignore[no-untyped-def]
        f0 = f1 = f2 = f3 = g0 = g1 = g2 = g3 = simd.splat(0.0)
        b1, last = (width - 1) * next_tile, (width - 1) * SCALES
        for i in range(at.chunks):
            word, b = a + (i // 2) * PANEL + i % 2 * CHUNK, at.codes + i * at.chunk
            c0, c1, c2, c3 = begin(sides + 4), begin(sides + 12), begin(sides + 20), begin(sides + 28)
            d0, d1, d2, d3 = c0, c1, c2, c3
            for j in range(4):
                left, right = low(b + j * step), low(b + b1 + j * step)
                c0, d0 = dot(c0, word, left), dot(d0, word, right)
                c1, d1 = dot(c1, word + 64, left), dot(d1, word + 64, right)
                c2, d2 = dot(c2, word + 128, left), dot(d2, word + 128, right)
                c3, d3 = dot(c3, word + 192, left), dot(d3, word + 192, right)
                left, right = high(b + j * step), high(b + b1 + j * step)
                c0, d0 = dot(c0, word + 4, left), dot(d0, word + 4, right)
                c1, d1 = dot(c1, word + 68, left), dot(d1, word + 68, right)
                c2, d2 = dot(c2, word + 132, left), dot(d2, word + 132, right)
                c3, d3 = dot(c3, word + 196, left), dot(d3, word + 196, right)
                word += 8
            group = (i >> at.shift) * at.group
            s, z = load_scales(at.scales + group), load_scales(at.shifts + group)
            f0, f1 = added(f0, c0, s, z, sides), added(f1, c1, s, z, sides + 8)
            f2, f3 = added(f2, c2, s, z, sides + 16), added(f3, c3, s, z, sides + 24)
            s, z = load_scales(at.scales + group + last), load_scales(at.shifts + group + last)
            g0, g1 = added(g0, d0, s, z, sides), added(g1, d1, s, z, sides + 8)
            g2, g3 = added(g2, d2, s, z, sides + 16), added(g3, d3, s, z, sides + 24)
            sides += SIDES
        store_tiles(sums, f0, g0)
        store_tiles(sums + SUMS, f1, g1)
        store_tiles(sums + 2 * SUMS, f2, g2)
        store_tiles(sums + 3 * SUMS, f3, g3)

    return four_rows


def by_chunk(codes: Codes, form: Unpacked, has_shifts: bool) -> Any:
    """Return the sums of up to sixteen rows by two column tiles, which are in memory from chunk to chunk."""
    (size, unpack, dot), begin, load_scales, step = form, codes.begin, codes.load_scales, codes.step
    added, next_tile, unpacked = _added(codes, has_shifts), codes.chunk_bytes, stack_lines(8 * size // LINE)

    @inline
    def add_rows(word, sides, lines, scales, shifts, sums):  # type: ignore[no-untyped-def]
        """Add the products of one chunk of four rows and one column tile to their sums."""
        c0, c1, c2, c3 = begin(sides + 4), begin(sides + 12), begin(sides + 20), begin(sides + 28)
        end = hidden(word + CHUNK)
        while word < end:
            c0, c1 = dot(c0, word, lines), dot(c1, word + 64, lines)
            c2, c3 = dot(c2, word + 128, lines), dot(c3, word + 192, lines)
            word, lines = word + 4, lines + size
        s, z = load_scales(scales), load_scales(shifts)
        simd.store(sums, added(simd.load(sums), c0, s, z, sides))
        simd.store(sums + SUMS, added(simd.load(sums + SUMS), c1, s, z, sides + 8))
        simd.store(sums + 2 * SUMS, added(simd.load(sums + 2 * SUMS), c2, s, z, sides + 16))
        simd.store(sums + 3 * SUMS, added(simd.load(sums + 3 * SUMS), c3, s, z, sides + 24))

    @inline
    def sixteen_rows(a, sides, at, width, sums, count):  # type: ignore[no-untyped-def]
        lines = unpacked()
        for i in range(0, count * SUMS, LINE):
            simd.store(sums + i, simd.splat(0.0))
        for i in range(at.chunks):
            for tile in range(width):
                b, group = at.codes + i * at.chunk + tile * next_tile, (i >> at.shift) * at.group + tile * SCALES
                for j in range(4):
                    unpack(b + j * step, lines + 2 * j * size)
                for row in range(0, count, ROWS):
                    word, into = a + (i // 2) * PANEL + i % 2 * CHUNK + row * 64, sums + row * SUMS + tile * LINE
                    add_rows(word, sides + 8 * row, lines, at.scales + group, at.shifts + group, into)
            sides += SIDES

    return sixteen_rows
