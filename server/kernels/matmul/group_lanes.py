"""output = activations @ weights on vector lanes, for codes with a scale for each group of k: 4-bit ones, and the loop.

Layouts:
  activations  blocks of sixteen rows: panels [K/64][16][64] int8, then [K/32][16] pairs: a float32 scale, and as int32
      -8 times the sum of the 32 codes (panels.py)
  weights      [N/32][K/32][2][4 lines][16 n][4] of two codes a byte (isa/nibbles.py), or 8 lines of one
      (isa/byte_codes.py)
  scales       [N/32][groups][2][16 n]; and shifts likewise, of formats that have them
If the number of column tiles is odd, the last is by itself: with 1 in the place of 2. A pair is read as one stream,
because memory gives more bytes a second to few streams than to many.

A code stands for scale * (code - 8) + shift, an 8-bit one for scale * (code - 128). group_products.py has the sums.
"""

from __future__ import annotations

from typing import Any

from ...config.formats import Isa
from ..isa import neon, nibbles, simd
from ..isa.jit import Kernel, inline, made_kernel
from ..isa.memory import load_i64, stack_lines
from ..records import MATMUL
from . import epilogue
from .group_products import (
    BLOCK,
    PANEL,
    SCALES,
    Codes,
    Tiles,
    by_chunk,
    by_tile,
    by_two_tiles,
    codes_of,
    halves_in_memory,
    one_row,
)
from .lane_products import PANEL_ROWS, ROWS, SUMS
from .loop import LINE, matmul_loop, rows_of

_sums_of_panel = stack_lines(PANEL_ROWS * SUMS // LINE)


def _int4(dot: Any, load_scales: Any) -> Codes:
    return codes_of(LINE, (nibbles.low_int4, nibbles.high_int4), nibbles.first_sums, load_scales, dot)


def _mxfp4(dot: Any, low: Any = nibbles.low_e2m1, high: Any = nibbles.high_e2m1) -> Codes:
    return codes_of(LINE, (low, high), nibbles.first_sums_twice, simd.load_bf16, dot)


def _rows(codes: Codes, has_shifts: bool, output: epilogue.Output) -> Any:
    one = one_row(codes, has_shifts)
    many, at_most = (by_two_tiles if codes.is_by_two else by_tile)(codes, has_shifts), ROWS
    if codes.unpacked is not None:
        many, at_most = by_chunk(codes, codes.unpacked, has_shifts), PANEL_ROWS
    (place, store), chunk_bytes, tiles_of = output, codes.chunk_bytes, Tiles

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
        first_scale = n * (((chunks - 1) >> shift) + 1) * SCALES
        scales = load_i64(op + MATMUL.column_scales) + first_scale
        shifts = load_i64(op + MATMUL.column_sums) + first_scale if has_shifts else scales
        weights = load_i64(op + MATMUL.weights) + n * chunks * chunk_bytes
        tiles = tiles_of(weights, scales, shifts, width * chunk_bytes, width * SCALES, shift, chunks)
        sums, first = _sums_of_panel(), begin
        while first < end:
            block = load_i64(op + MATMUL.activations) + first // 16 * k_tiles * BLOCK
            a, sides = block + first % 16 * 64, block + k_tiles * PANEL + first % 16 * 8
            count = min(at_most - first % at_most, end - first)  # a share of rows may begin at any multiple of four
            if count > 1:  # rows after the last are the block's padding
                many(a, sides, tiles, width, sums, (count + ROWS - 1) // ROWS * ROWS)
            else:
                one(a, sides, tiles, width, sums)
            for i in range(count):
                finish(op, first + i, n, width, sums + i * SUMS)
            first += count

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

    loop = matmul_loop(item, BLOCK // 16)

    @inline
    def matmul(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        loop(operands, cores, rows_of(operands, step), worker, workers)

    return matmul


_PAIRS = _int4(nibbles.add_pairs_avx2, nibbles.load_f16)._replace(
    begin=nibbles.no_sums, number=nibbles.number_of_pairs_avx2
)
_INT4: dict[Isa, Codes] = {
    "avx512-vnni": _int4(nibbles.dot_u8_avx512_vnni, nibbles.load_f16)._replace(is_by_two=True),
    "avx2-vnni": _int4(nibbles.dot_u8_avx2_vnni, nibbles.load_f16),
    "avx2": _PAIRS._replace(unpacked=halves_in_memory(_PAIRS)),
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
