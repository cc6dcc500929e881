"""output = activations @ weights on vector lanes, for codes with a scale for each group of k: 4-bit ones, and the loop.

Layouts:
  activations  blocks of sixteen rows: panels [K/64][16][64] int8, then [K/32][16] pairs: a float32 scale, and as int32
      -8 times the sum of the 32 codes (panels.py)
  weights      [N/32][K/32][2][4 lines][16 n][4] of two codes a byte (isa/nibbles.py), or 8 lines of one
      (isa/byte_codes.py)
  scales       [N/32][groups][2][16 n]; and shifts likewise, of formats that have them
If the number of column tiles is odd, the last is by itself: with 1 in the place of 2. A pair is read as one stream,
because memory gives more bytes a second to few streams than to many.

A code stands for scale * (code - 8) + shift, an 8-bit one for scale * (code - 128). The codes of 32 of k are summed as
int32, beginning at -8 times the sum of the activations, and then scaled into a float32 sum. k runs in order, four rows
or one at a time, so an element's sum has one order whatever T or the number of workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...config.formats import Isa
from ...device.layout import GROUP_SCALE_BYTES
from ..isa import neon, nibbles, simd
from ..isa.dot_product import float_of_sums
from ..isa.jit import Kernel, inline, made_kernel
from ..isa.memory import hidden, load_f32, load_i64, prefetch
from ..records import MATMUL
from . import epilogue
from .lane_products import ROWS, SUMS, stack_sums, store_tiles
from .loop import AHEAD, LINE, matmul_loop, rows_of

CHUNK = 32  # neighbours in k that are summed as whole numbers; a group has one or more chunks
_PANEL, _SIDES = 1024, 16 * 8  # bytes of sixteen rows of activations: 64 codes each, and one pair each
_BLOCK = _PANEL + 2 * _SIDES
_SCALES = 16 * GROUP_SCALE_BYTES  # of a group of sixteen columns


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


def _int4(dot: Any, load_scales: Any) -> Codes:
    return codes_of(LINE, (nibbles.low_int4, nibbles.high_int4), nibbles.first_sums, load_scales, dot)


def _mxfp4(dot: Any, low: Any = nibbles.low_e2m1, high: Any = nibbles.high_e2m1) -> Codes:
    return codes_of(LINE, (low, high), nibbles.first_sums_twice, simd.load_bf16, dot)


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


class _Tiles(NamedTuple):
    """Column tiles side by side at the first of k, and the bytes from each chunk or group to the next."""

    codes: Any
    scales: Any
    shifts: Any  # equal to scales if there are none
    chunk: Any
    group: Any
    shift: Any  # log2 of the chunks of a group
    chunks: Any


def _one_row(codes: Codes, has_shifts: bool) -> Any:
    """Return the sums over all of k of one row by two column tiles."""
    low, high, dot, begin, load_scales = codes.low, codes.high, codes.dot, codes.begin, codes.load_scales
    added, step, next_tile = _added(codes, has_shifts), codes.step, codes.chunk_bytes

    @inline
    def one_row(a, sides, at, width, sums):  # type: ignore[no-untyped-def]
        f = g = simd.splat(0.0)
        turns = hidden(4)
        b1, last = (width - 1) * next_tile, (width - 1) * _SCALES
        for i in range(at.chunks):
            word, b, group = a + (i // 2) * _PANEL + i % 2 * CHUNK, at.codes + i * at.chunk, (i >> at.shift) * at.group
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
            sides += _SIDES
        simd.store(sums, f)
        simd.store(sums + LINE, g)

    return one_row


def _by_tile(codes: Codes, has_shifts: bool) -> Any:
    """Return the sums of four rows by one column tile, then the other: those of a chunk take eight of 16 registers."""
    low, high, dot, begin, load_scales = codes.low, codes.high, codes.dot, codes.begin, codes.load_scales
    added, step, next_tile = _added(codes, has_shifts), codes.step, codes.chunk_bytes

    @inline
    def of_tile(a, sides, at, tile, sums):  # type: ignore[no-untyped-def]
        f0 = f1 = f2 = f3 = simd.splat(0.0)
        turns = hidden(4)  # if unrolled, rows would be multiplied one by one and codes go through memory
        for i in range(at.chunks):
            word, b = a + (i // 2) * _PANEL + i % 2 * CHUNK, at.codes + tile * next_tile + i * at.chunk
            c0, c1, c2, c3 = begin(sides + 4), begin(sides + 12), begin(sides + 20), begin(sides + 28)
            for j in range(turns):
                left, right = low(b + j * step), high(b + j * step)
                c0, c1 = dot(c0, word, left), dot(c1, word + 64, left)
                c2, c3 = dot(c2, word + 128, left), dot(c3, word + 192, left)
                c0, c1 = dot(c0, word + 4, right), dot(c1, word + 68, right)
                c2, c3 = dot(c2, word + 132, right), dot(c3, word + 196, right)
                word += 8
            group = (i >> at.shift) * at.group + tile * _SCALES
            s, z = load_scales(at.scales + group), load_scales(at.shifts + group)
            f0, f1 = added(f0, c0, s, z, sides), added(f1, c1, s, z, sides + 8)
            f2, f3 = added(f2, c2, s, z, sides + 16), added(f3, c3, s, z, sides + 24)
            sides += _SIDES
        simd.store(sums, f0)
        simd.store(sums + SUMS, f1)
        simd.store(sums + 2 * SUMS, f2)
        simd.store(sums + 3 * SUMS, f3)

    @inline
    def four_rows(a, sides, at, width, sums):  # type: ignore[no-untyped-def]
        for tile in range(width):
            of_tile(a, sides, at, tile, sums + tile * LINE)

    return four_rows


def _by_two_tiles(codes: Codes, has_shifts: bool) -> Any:
    """Return the same for both column tiles at once."""
    low, high, dot, begin, load_scales = codes.low, codes.high, codes.dot, codes.begin, codes.load_scales
    added, step, next_tile = _added(codes, has_shifts), codes.step, codes.chunk_bytes

    @inline
    def four_rows(a, sides, at, width, sums):  # type: ignore[no-untyped-def]
        f0 = f1 = f2 = f3 = g0 = g1 = g2 = g3 = simd.splat(0.0)
        b1, last = (width - 1) * next_tile, (width - 1) * _SCALES
        for i in range(at.chunks):
            word, b = a + (i // 2) * _PANEL + i % 2 * CHUNK, at.codes + i * at.chunk
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
            sides += _SIDES
        store_tiles(sums, f0, g0)
        store_tiles(sums + SUMS, f1, g1)
        store_tiles(sums + 2 * SUMS, f2, g2)
        store_tiles(sums + 3 * SUMS, f3, g3)

    return four_rows


def _rows(codes: Codes, has_shifts: bool, output: epilogue.Output) -> Any:
    one = _one_row(codes, has_shifts)
    four = (_by_two_tiles if codes.is_by_two else _by_tile)(codes, has_shifts)
    (place, store), chunk_bytes, tiles_of = output, codes.chunk_bytes, _Tiles

    @inline
    def finish(op, row, n, width, sums):  # type: ignore[no-untyped-def]
        at, bias = place(load_i64(op + MATMUL.output), load_i64(op + MATMUL.ldc), row, n), load_i64(op + MATMUL.bias)
        left, right = simd.load(sums), simd.load(sums + (width - 1) * LINE)
        if bias != 0:
            left = simd.add(left, simd.load(bias + n * LINE))
            right = simd.add(right, simd.load(bias + (n + width - 1) * LINE))
        store(at, left, right, width, load_i64(op + MATMUL.activation))

    @inline
    def all_rows(op, n, width, begin, end):  # type: ignore[no-untyped-def]
        """Multiply rows `begin` to `end` by column tiles n and n + 1, or n alone if `width` is 1."""
        k_tiles, shift = load_i64(op + MATMUL.k_tiles), load_i64(op + MATMUL.group_shift)
        chunks = 2 * k_tiles
        first_scale = n * (((chunks - 1) >> shift) + 1) * _SCALES
        scales = load_i64(op + MATMUL.column_scales) + first_scale
        shifts = load_i64(op + MATMUL.column_sums) + first_scale if has_shifts else scales
        weights = load_i64(op + MATMUL.weights) + n * chunks * chunk_bytes
        tiles = tiles_of(weights, scales, shifts, width * chunk_bytes, width * _SCALES, shift, chunks)
        sums = stack_sums()
        for first in range(begin, end, ROWS):
            block = load_i64(op + MATMUL.activations) + first // 16 * k_tiles * _BLOCK
            a, sides = block + first % 16 * 64, block + k_tiles * _PANEL + first % 16 * 8
            count = min(ROWS, end - first)
            if count > 1:  # rows after the last are the block's padding
                four(a, sides, tiles, width, sums)
            else:
                one(a, sides, tiles, width, sums)
            for i in range(count):
                finish(op, first + i, n, width, sums + i * SUMS)

    return all_rows


def _matmul(codes: Codes, store: str, may_shift: bool) -> Any:
    """Return the body of a kernel."""
    output = epilogue.OUTPUTS[store]
    plain = _rows(codes, False, output)
    shifted = _rows(codes, True, output) if may_shift else plain

    @inline
    def item(op, n, width, begin, end, scratch):  # type: ignore[no-untyped-def]
        if may_shift and load_i64(op + MATMUL.column_sums) != 0:
            shifted(op, n, width, begin, end)
        else:
            plain(op, n, width, begin, end)

    loop = matmul_loop(item, _BLOCK // 16)

    @inline
    def matmul(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        loop(operands, cores, rows_of(operands, step), worker, workers)

    return matmul


_INT4: dict[Isa, Codes] = {
    "avx512-vnni": _int4(nibbles.dot_u8_avx512_vnni, nibbles.load_f16)._replace(is_by_two=True),
    "avx2-vnni": _int4(nibbles.dot_u8_avx2_vnni, nibbles.load_f16),
    "avx2": _int4(nibbles.add_pairs_avx2, nibbles.load_f16)._replace(
        begin=nibbles.no_sums, number=nibbles.number_of_pairs_avx2
    ),
    "neon-dot": _int4(neon.dot_codes, nibbles.load_f16),
    "portable": _int4(nibbles.dot_u8_portable, nibbles.load_f16_portable),
}
_FP4: dict[Isa, Codes] = {
    "avx512-vnni": _mxfp4(nibbles.dot_u8_avx512_vnni)._replace(is_by_two=True),
    "avx2-vnni": _mxfp4(nibbles.dot_u8_avx2_vnni),
    "avx2": _mxfp4(nibbles.dot_u8_avx2, nibbles.low_e2m1_avx2, nibbles.high_e2m1_avx2),
    "neon-dot": _mxfp4(neon.dot_codes, nibbles.low_e2m1_neon, nibbles.high_e2m1_neon),
    "portable": _mxfp4(nibbles.dot_u8_portable),
}


def kernels_of(cell: str, rows: dict[Isa, Codes], may_shift: bool) -> dict[Isa, tuple[Kernel, Kernel]]:
    """Return each instruction set's kernels: a matrix's product, and that of interleaved gate and up."""
    made: dict[Isa, tuple[Kernel, Kernel]] = {}
    for isa, codes in rows.items():
        name = f"{cell}_{isa}".replace("-", "_")
        plain = made_kernel(f"matmul_{name}", _matmul(codes, "plain", may_shift))
        made[isa] = plain, made_kernel(f"gated_{name}", _matmul(codes, "gated", may_shift))
    return made


INT4, FP4 = kernels_of("i4", _INT4, True), kernels_of("fp4", _FP4, False)
