"""output = activations @ weights on vector lanes, of codes with a scale for each group of k: 4-bit ones, and the loop.

Layouts:
  activations  blocks of sixteen rows: panels [K/64][16][64] int8, then [K/32][16] pairs: a float32 scale, and as int32
               -8 times the sum of the 32 codes (panels.py)
  weights      [N/32][K/32][2][4 lines][16 n][4] of two codes a byte (isa/nibbles.py), or 8 lines of one
               (isa/byte_codes.py)
  scales       [N/32][groups][2][16 n]; and of formats with shifts these, alike
Where the number of column tiles is odd, the last is by itself: with 1 in the place of 2. A pair is read as one stream,
because memory gives more bytes a second to few streams than to many.

A code stands for scale * (code - 8) + shift, one of eight bits for scale * (code - 128). The codes of 32 of k are
summed as int32, which begin at -8 times the sum of the activations, then scaled into a float32 sum: k runs in order,
four rows or one at a time, so an element's sum has one order whatever T or the number of workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from server.config.formats import Isa
from server.device.layout import GROUP_SCALE_BYTES
from server.kernels.isa import neon, nibbles, simd
from server.kernels.isa.jit import Kernel, inline, made_kernel
from server.kernels.isa.memory import load_f32, load_i64
from server.kernels.matmul import epilogue
from server.kernels.matmul.loop import LINE, matmul_loop, rows_of
from server.kernels.records import MATMUL

CHUNK = 32  # neighbours in k that are summed as whole numbers; a group has one or more
_PANEL, _SIDES = 1024, 16 * 8  # bytes of sixteen rows of activations: 64 codes of each, one pair of each
_BLOCK = _PANEL + 2 * _SIDES
_SCALES = 16 * GROUP_SCALE_BYTES  # of a group of sixteen columns


class Codes(NamedTuple):
    """How a format's codes are read and multiplied."""

    step: int  # bytes of sixteen columns at eight of k
    low: Any  # (their address) -> bytes of the first half of k
    high: Any
    first_sums: Any  # (address of the pair's int32) -> where the sums begin
    load_scales: Any  # (address) -> sixteen columns' scales
    dot: Any  # (sums, word, codes) -> sums

    @property
    def chunk_bytes(self) -> int:
        """Of sixteen columns."""
        return CHUNK // 8 * self.step


def _int4(dot: Any, load_scales: Any) -> Codes:
    return Codes(LINE, nibbles.low_int4, nibbles.high_int4, nibbles.first_sums, load_scales, dot)


def _mxfp4(dot: Any) -> Codes:
    return Codes(LINE, nibbles.low_e2m1, nibbles.high_e2m1, nibbles.first_sums_twice, simd.load_bf16, dot)


def _chunk_products(codes: Codes) -> tuple[Any, Any]:
    """int32 sums of one chunk of four rows, or one, by two column tiles."""
    low, high, first, dot, step = codes.low, codes.high, codes.first_sums, codes.dot, codes.step

    @inline
    def four_rows(a, sides, b0, b1):  # type: ignore[no-untyped-def]
        c0, c1, c2, c3 = first(sides + 4), first(sides + 12), first(sides + 20), first(sides + 28)
        d0, d1, d2, d3 = c0, c1, c2, c3
        for i in range(4):
            at, left, right = a + 8 * i, low(b0 + i * step), low(b1 + i * step)
            c0, d0 = dot(c0, at, left), dot(d0, at, right)
            c1, d1 = dot(c1, at + 64, left), dot(d1, at + 64, right)
            c2, d2 = dot(c2, at + 128, left), dot(d2, at + 128, right)
            c3, d3 = dot(c3, at + 192, left), dot(d3, at + 192, right)
            at, left, right = at + 4, high(b0 + i * step), high(b1 + i * step)
            c0, d0 = dot(c0, at, left), dot(d0, at, right)
            c1, d1 = dot(c1, at + 64, left), dot(d1, at + 64, right)
            c2, d2 = dot(c2, at + 128, left), dot(d2, at + 128, right)
            c3, d3 = dot(c3, at + 192, left), dot(d3, at + 192, right)
        return c0, d0, c1, d1, c2, d2, c3, d3

    @inline
    def one_row(a, sides, b0, b1):  # type: ignore[no-untyped-def]
        c = d = first(sides + 4)
        for i in range(4):
            at = a + 8 * i
            c, d = dot(c, at, low(b0 + i * step)), dot(d, at, low(b1 + i * step))
            c, d = dot(c, at + 4, high(b0 + i * step)), dot(d, at + 4, high(b1 + i * step))
        return c, d

    return four_rows, one_row


def _added(codes: Codes, has_shifts: bool) -> Any:
    first = codes.first_sums

    @inline
    def added(total, sums, scales, shifts, sides):  # type: ignore[no-untyped-def]
        """The total and one chunk's sums, of one row and column tile."""
        by = simd.mul(nibbles.number(sums), scales)
        if has_shifts:
            by = simd.fma(nibbles.number(first(sides + 4)), shifts, by)
        return simd.fma(by, simd.splat(load_f32(sides)), total)

    return added


def _products(codes: Codes, has_shifts: bool) -> tuple[Any, Any]:
    """Sums over all of k of four rows, or one, by two column tiles."""
    four_chunk, one_chunk = _chunk_products(codes)
    added, load_scales, chunk_bytes = _added(codes, has_shifts), codes.load_scales, codes.chunk_bytes

    @inline
    def group_of(scales, shifts, width, group):  # type: ignore[no-untyped-def]
        """Scales and shifts of both column tiles; shifts are the scales where there are none."""
        at, last = scales + group * width * _SCALES, (width - 1) * _SCALES
        s0, s1 = load_scales(at), load_scales(at + last)
        if has_shifts:
            at = shifts + group * width * _SCALES
            return s0, s1, load_scales(at), load_scales(at + last)
        return s0, s1, s0, s1

    @inline
    def four_rows(a, sides, b0, scales, shifts, width, shift, chunks):  # type: ignore[no-untyped-def]
        b1 = b0 + (width - 1) * chunk_bytes
        f0 = f1 = f2 = f3 = g0 = g1 = g2 = g3 = simd.splat(0.0)
        for i in range(chunks):
            at, k = a + (i // 2) * _PANEL + i % 2 * CHUNK, i * width * chunk_bytes
            c0, d0, c1, d1, c2, d2, c3, d3 = four_chunk(at, sides, b0 + k, b1 + k)
            s0, s1, z0, z1 = group_of(scales, shifts, width, i >> shift)
            f0, g0 = added(f0, c0, s0, z0, sides), added(g0, d0, s1, z1, sides)
            f1, g1 = added(f1, c1, s0, z0, sides + 8), added(g1, d1, s1, z1, sides + 8)
            f2, g2 = added(f2, c2, s0, z0, sides + 16), added(g2, d2, s1, z1, sides + 16)
            f3, g3 = added(f3, c3, s0, z0, sides + 24), added(g3, d3, s1, z1, sides + 24)
            sides += _SIDES
        return f0, g0, f1, g1, f2, g2, f3, g3

    @inline
    def one_row(a, sides, b0, scales, shifts, width, shift, chunks):  # type: ignore[no-untyped-def]
        b1 = b0 + (width - 1) * chunk_bytes
        f = g = simd.splat(0.0)
        for i in range(chunks):
            at, k = a + (i // 2) * _PANEL + i % 2 * CHUNK, i * width * chunk_bytes
            c, d = one_chunk(at, sides, b0 + k, b1 + k)
            s0, s1, z0, z1 = group_of(scales, shifts, width, i >> shift)
            f, g = added(f, c, s0, z0, sides), added(g, d, s1, z1, sides)
            sides += _SIDES
        return f, g

    return four_rows, one_row


def _rows(codes: Codes, has_shifts: bool, output: epilogue.Output) -> Any:
    four_rows, one_row = _products(codes, has_shifts)
    (place, store), chunk_bytes = output, codes.chunk_bytes

    @inline
    def finish(op, row, n, width, left, right):  # type: ignore[no-untyped-def]
        at, bias = place(load_i64(op + MATMUL.output), load_i64(op + MATMUL.ldc), row, n), load_i64(op + MATMUL.bias)
        if bias != 0:
            left = simd.add(left, simd.load(bias + n * LINE))
            right = simd.add(right, simd.load(bias + (n + width - 1) * LINE))
        store(at, left, right, width, load_i64(op + MATMUL.activation))

    @inline
    def all_rows(op, n, width, begin, end):  # type: ignore[no-untyped-def]
        """Rows `begin` to `end` of column tiles n and n + 1, or n alone where `width` is 1."""
        k_tiles, shift = load_i64(op + MATMUL.k_tiles), load_i64(op + MATMUL.group_shift)
        chunks = 2 * k_tiles
        b0 = load_i64(op + MATMUL.weights) + n * chunks * chunk_bytes
        groups = ((chunks - 1) >> shift) + 1
        scales = load_i64(op + MATMUL.column_scales) + n * groups * _SCALES
        shifts = load_i64(op + MATMUL.column_sums) + n * groups * _SCALES
        row = begin
        while row < end:
            block = load_i64(op + MATMUL.activations) + row // 16 * k_tiles * _BLOCK
            a, sides = block + row % 16 * 64, block + k_tiles * _PANEL + row % 16 * 8
            if row + 4 <= end:
                f0, g0, f1, g1, f2, g2, f3, g3 = four_rows(a, sides, b0, scales, shifts, width, shift, chunks)
                finish(op, row, n, width, f0, g0)
                finish(op, row + 1, n, width, f1, g1)
                finish(op, row + 2, n, width, f2, g2)
                finish(op, row + 3, n, width, f3, g3)
                row += 4
            else:
                f, g = one_row(a, sides, b0, scales, shifts, width, shift, chunks)
                finish(op, row, n, width, f, g)
                row += 1

    return all_rows


def _matmul(codes: Codes, store: str, may_shift: bool) -> Any:
    """The body of a kernel."""
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
    "avx512-vnni": _int4(nibbles.dot_u8_avx512_vnni, nibbles.load_f16),
    "avx2-vnni": _int4(nibbles.dot_u8_avx2_vnni, nibbles.load_f16),
    "avx2": _int4(nibbles.dot_u8_avx2, nibbles.load_f16),
    "neon-dot": _int4(neon.dot_codes, nibbles.load_f16),
    "portable": _int4(nibbles.dot_u8_portable, nibbles.load_f16_portable),
}
_FP4: dict[Isa, Codes] = {
    "avx512-vnni": _mxfp4(nibbles.dot_u8_avx512_vnni),
    "avx2-vnni": _mxfp4(nibbles.dot_u8_avx2_vnni),
    "avx2": _mxfp4(nibbles.dot_u8_avx2)._replace(low=nibbles.low_e2m1_avx2, high=nibbles.high_e2m1_avx2),
    "neon-dot": _mxfp4(neon.dot_codes)._replace(low=nibbles.low_e2m1_neon, high=nibbles.high_e2m1_neon),
    "portable": _mxfp4(nibbles.dot_u8_portable),
}


def kernels_of(cell: str, rows: dict[Isa, Codes], may_shift: bool) -> dict[Isa, tuple[Kernel, Kernel]]:
    """Of each instruction set a matrix's product, and that of interleaved gate and up."""
    made: dict[Isa, tuple[Kernel, Kernel]] = {}
    for isa, codes in rows.items():
        name = f"{cell}_{isa}".replace("-", "_")
        plain = made_kernel(f"matmul_{name}", _matmul(codes, "plain", may_shift))
        made[isa] = plain, made_kernel(f"gated_{name}", _matmul(codes, "gated", may_shift))
    return made


INT4, FP4 = kernels_of("i4", _INT4, True), kernels_of("fp4", _FP4, False)
