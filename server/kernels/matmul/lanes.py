"""output = activations @ weights on vector lanes, for hosts without a tile unit and for float32.

Layouts as in matmul/amx.py; float32 activations are panels [T/16][K/32][16][32], weights [N/16][K][16 n]. A format and
an instruction set are a row of PRODUCTS: a step of the inner product, the number of column tiles that are multiplied at
once, and the scaling of the sums. Float rows leave the registers to LLVM, so that one row serves AVX2, NEON and others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...config.formats import Isa
from ..isa import byte_codes, dot_product, neon, simd
from ..isa.dot_product import Dots
from ..isa.jit import Kernel, inline, made_kernel
from ..isa.memory import load_f32, load_i64
from ..records import MATMUL
from . import epilogue
from .lane_products import (
    ROWS,
    SUMS,
    Step,
    Widened,
    by_row_pairs,
    by_tile,
    by_two_tiles,
    eight_by_two_tiles,
    one_row,
    stack_sums,
    unchanged,
    widened,
)
from .loop import AHEAD, LINE, matmul_loop, rows_of, scaled_weights, stored_weights
from .weight_codes import from_mxfp8

# Products of few rows prefetch the weights of the next two column tiles: each block of rows a part of them.
_FETCHING_BLOCKS = 16  # with more, waiting for the first of them costs little
_FETCHED_BYTES = 1 << 18  # of two column tiles; they and the next two stay in the second-level cache


class Scaling(NamedTuple):
    """How sums are scaled."""

    value: Any  # (sums, row scale, column scales) -> scaled sums
    is_int: bool = False  # int32 sums, with a scale for each row
    is_offset: bool = False  # activations are 128 too large


def _finisher(scaling: Scaling, to: epilogue.Output) -> Any:
    """Return the function that scales and stores the sums of two column tiles of one row."""
    value, is_int, is_offset = scaling
    place, store = to

    @inline
    def finish(op, row, n, width, sums):  # type: ignore[no-untyped-def]
        left, right = simd.load(sums), simd.load(sums + (width - 1) * LINE)
        scale, last = 1.0, (width - 1) * LINE
        scale0 = scale1 = simd.splat(1.0)
        if load_i64(op + MATMUL.column_scales) != 0:
            scales = load_i64(op + MATMUL.column_scales) + n * LINE
            scale0, scale1 = simd.load(scales), simd.load(scales + last)
        if is_int:
            scale = load_f32(load_i64(op + MATMUL.row_scales) + row * 4)
            sums0 = sums1 = 0
            if is_offset:
                sums0 = load_i64(op + MATMUL.column_sums) + n * LINE
                sums1 = sums0 + last
            left, right = dot_product.int_sums(left, sums0), dot_product.int_sums(right, sums1)
        at = place(load_i64(op + MATMUL.output), load_i64(op + MATMUL.ldc), row, n)
        left, right = value(left, scale, scale0), value(right, scale, scale1)
        bias = load_i64(op + MATMUL.bias)
        if bias != 0:
            left = simd.add(left, simd.load(bias + n * LINE))
            right = simd.add(right, simd.load(bias + n * LINE + last))
        store(at, left, right, width, load_i64(op + MATMUL.activation))

    return finish


class Product(NamedTuple):
    """Product of one format on one instruction set."""

    step: Step
    scaling: Scaling
    four_rows: Any = by_tile
    wide: Widened | None = None  # for four rows, instead of `step`
    tile_lines: int = 16  # of a tile of weights
    convert: Any = None  # (codes, scales, target, tiles): converts weights to bfloat16 first, each tile to two
    eight_rows: Any = None  # for more than four rows; None: by fours


def _item(product: Product, output: epilogue.Output) -> Any:
    step, scaling, four_rows, wide, tile_lines, convert, eight_rows = product
    one, finish = one_row(step), _finisher(scaling, output)
    four = unchanged(step, four_rows) if wide is None else widened(wide, four_rows)
    eight, at_most = (four, ROWS) if eight_rows is None else (unchanged(step, eight_rows), 2 * ROWS)
    tile_panels, row_bytes = tile_lines // step.lines, step.row
    weights_of = stored_weights(tile_lines) if convert is None else scaled_weights(convert)
    pair_bytes = 2 * step.lines * LINE  # of a panel's weights
    most_panels = _FETCHED_BYTES // pair_bytes if convert is None else 0

    @inline
    def item(op, n, width, begin, end, scratch):  # type: ignore[no-untyped-def]
        """Multiply rows `begin` to `end` by column tiles n and n + 1, or n alone if `width` is 1."""
        b0, b1, k_tiles = weights_of(op, n, width, scratch)
        panels, sums = k_tiles * tile_panels, stack_sums()
        first, blocks = begin, (end - begin + at_most - 1) // at_most
        ahead, fetched = b0 + panels * pair_bytes, 0
        if blocks <= _FETCHING_BLOCKS and panels <= most_panels:
            fetched = (pair_bytes // LINE + blocks - 1) // blocks * LINE
        while first < end:
            a = load_i64(op + MATMUL.activations) + (first // 16 * 16 * panels + first % 16) * row_bytes
            count = min(at_most - first % at_most, end - first)  # a share of rows may begin at any multiple of four
            if count > ROWS:  # rows after the last are the panel's padding
                eight(a, b0, b1, width, panels, sums, scratch, (ahead, fetched))
            elif count > 1:
                four(a, b0, b1, width, panels, sums, scratch, (ahead, fetched))
            else:
                one(a, b0, b1, panels, sums)
            for i in range(count):
                finish(op, first + i, n, width, sums + i * SUMS)
            first, ahead = first + count, ahead + panels * fetched

    return item


def _matmul(product: Product, output: str) -> Any:
    num_tiles = 1 if product.convert is None else 2
    tile_bytes = num_tiles * (product.tile_lines // product.step.lines) * product.step.row
    loop = matmul_loop(_item(product, epilogue.OUTPUTS[output]), tile_bytes)

    @inline
    def matmul(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        loop(operands, cores, rows_of(operands, step), worker, workers)

    return matmul


_PLAIN, _COLUMNS = Scaling(epilogue.unscaled), Scaling(epilogue.scaled_columns)
_INT, _INT_OFFSET = Scaling(epilogue.scaled_both, True), Scaling(epilogue.scaled_both, True, True)


def _floats(dots: Dots, per_line: int, scaling: Scaling) -> dict[Isa, Product]:
    """Return the products of bfloat16 activations with weights that have `per_line` neighbours of k in a line."""
    lines = 32 // per_line
    wide = Widened(dot_product.widen_bf16, Step(dots.wide, lines, 4 * per_line, 128))
    portable = Product(Step(dots.narrow, lines, 2 * per_line), scaling, wide=wide)
    return {"avx512": portable._replace(four_rows=by_two_tiles), "portable": portable}


def _pairs(narrow: Any, wide: Any, four_rows: Any) -> Product:
    """Return the product of int8 by int8, as int16 for four rows."""
    return Product(Step(narrow, 16), _INT, four_rows, Widened(dot_product.widen_i8, Step(wide, 16, 4, 128)))


_F32 = Product(Step(dot_product.dot_f32, 32, row=128), _PLAIN, tile_lines=32)
_BF16 = Product(Step(dot_product.dot_bf16_avx512, 16), _PLAIN, by_two_tiles, eight_rows=eight_by_two_tiles)
_MXFP8 = Product(Step(dot_product.DOT_BF16.narrow, 16), _PLAIN, convert=from_mxfp8)
_BF16_ARM = Product(Step(neon.dot_bf16, 16, at_once=neon.LINES), _PLAIN, by_row_pairs(neon.pairs_bf16))
_I8_ARM = Product(Step(neon.dot_i8, 16, at_once=neon.LINES), _INT)
PRODUCTS: dict[str, dict[Isa, Product]] = {
    "f32": {"avx512": _F32._replace(four_rows=by_two_tiles), "portable": _F32},
    "bf16": {
        "avx512-bf16": _BF16,
        "neon-i8mm": _BF16_ARM,
        **_floats(dot_product.DOT_BF16, 2, _PLAIN),
    },
    "i8": {
        "avx512-vnni": Product(
            Step(dot_product.dot_i8_avx512_vnni, 16), _INT_OFFSET, by_two_tiles, eight_rows=eight_by_two_tiles
        ),
        "avx512": _pairs(dot_product.dot_i8_avx512, dot_product.dot_i16_avx512, by_two_tiles),
        "avx2-vnni": Product(Step(dot_product.dot_i8_avx2_vnni, 16), _INT_OFFSET),
        "avx2": Product(Step(byte_codes.dot_i8_avx2, 16, ahead=AHEAD), _INT),
        "neon-i8mm": _I8_ARM._replace(four_rows=by_row_pairs(neon.pairs_i8)),
        "neon-dot": _I8_ARM,
        "portable": Product(Step(dot_product.dot_i8_portable, 16), _INT),
    },
    "w8": _floats(dot_product.DOT_I8_CODES, 4, _COLUMNS),
    "e4m3": _floats(dot_product.DOT_E4M3, 4, _COLUMNS),
    "e5m2": _floats(dot_product.DOT_E5M2, 4, _COLUMNS),
    "mxfp8": {
        "avx512-bf16": _BF16._replace(convert=from_mxfp8),
        "avx512": _MXFP8._replace(four_rows=by_two_tiles),
        "neon-i8mm": _BF16_ARM._replace(convert=from_mxfp8),
        "portable": _MXFP8,
    },
}


def _kernels(cell: str, rows: dict[Isa, Product]) -> dict[Isa, tuple[Kernel, Kernel]]:
    """Return the matmul and the gated kernel of each row; AVX2 and NEON use the portable ones if they have none."""
    made: dict[Isa, tuple[Kernel, Kernel]] = {}
    for isa, product in rows.items():
        name = f"{cell}_{isa}".replace("-", "_")
        plain = made_kernel(f"matmul_{name}", _matmul(product, "plain"))
        made[isa] = plain, made_kernel(f"gated_{name}", _matmul(product, "gated"))
    return {"avx2": made["portable"], "neon-dot": made["portable"], **made}


MATMULS = {cell: _kernels(cell, rows) for cell, rows in PRODUCTS.items()}
