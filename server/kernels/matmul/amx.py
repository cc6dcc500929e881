"""output[T, N] = activations[T, K] @ weights[K, N] on the tile unit of recent x86 hosts.

Layouts, for every kernel in this folder (1 KiB a tile, the order in which the tile unit reads):
  activations  panels [T/16][K/32][16 rows][32] bfloat16, or [T/16][K/64][16][64] int8
  weights      tiles  [N/16][K/32][16 pairs][16 n][2] bfloat16, or [N/16][K/64][16 groups][16 n][4] of 8-bit codes
  output       rows   [T][ldc] float32; of gated products panels [T/16][ldc/32][16 rows][32] bfloat16, ldc columns
Each output element is summed over k in one order, whatever T or the number of workers.
"""

from __future__ import annotations

from typing import Any

from ..isa import amx, simd
from ..isa.jit import inline, made_kernel
from . import epilogue, weight_codes
from .amx_products import column_pair, few_rows, finisher, outputs, toucher
from .loop import column_item, converted_weights, matmul_loop, rows_of, stored_weights


@inline
def _prepare(rows):  # type: ignore[no-untyped-def]
    amx.configure(min(rows, 16))


def _matmul(item: Any, tile_bytes: int) -> Any:
    loop = matmul_loop(item, tile_bytes, _prepare)

    @inline
    def matmul(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        rows = rows_of(operands, step)
        if rows > 0:
            loop(operands, cores, rows, worker, workers)
            amx.release()

    return matmul


def _bf16(output: str) -> Any:
    """Return the product of bfloat16 by bfloat16."""
    finish = finisher(simd.load, epilogue.unscaled, epilogue.OUTPUTS[output], has_row_scales=False)
    pair = column_pair(amx.dot_bf16, finish, toucher(epilogue.OUTPUTS[output]), outputs(has_column_scales=False))
    return _matmul(column_item(pair, stored_weights(16)), 64)


def _i8(output: str) -> Any:
    """Return the product of int8 by int8."""
    finish = finisher(simd.load_i32, epilogue.scaled_both, epilogue.OUTPUTS[output], has_row_scales=True)
    touch = toucher(epilogue.OUTPUTS[output])
    pair = column_pair(amx.dot_i8, finish, touch, outputs(has_column_scales=True), is_exact=True)
    return _matmul(column_item(pair, stored_weights(16)), 64)


def _codes(convert: Any, output: str) -> Any:
    """Return the product of bfloat16 by 8-bit codes."""
    finish = finisher(simd.load, epilogue.scaled_columns, epilogue.OUTPUTS[output], has_row_scales=False)
    outputs_of = outputs(has_column_scales=True)
    few = few_rows(convert, finish, outputs_of)
    many = column_item(
        column_pair(amx.dot_bf16, finish, toucher(epilogue.OUTPUTS[output]), outputs_of), converted_weights(convert)
    )

    @inline
    def item(op, n, width, begin, end, scratch):  # type: ignore[no-untyped-def]
        if end - begin <= 32:
            few(op, n, width, begin, end, scratch)
        else:
            many(op, n, width, begin, end, scratch)

    return _matmul(item, 128)


_W8, _E4M3, _E5M2 = weight_codes.from_int8, weight_codes.from_e4m3, weight_codes.from_e5m2
matmul_bf16_amx = made_kernel("matmul_bf16_amx", _bf16("plain"))
gated_bf16_amx = made_kernel("gated_bf16_amx", _bf16("gated_panels"))
matmul_i8_amx = made_kernel("matmul_i8_amx", _i8("plain"))
gated_i8_amx = made_kernel("gated_i8_amx", _i8("gated_panels"))
matmul_w8_amx = made_kernel("matmul_w8_amx", _codes(_W8, "plain"))
gated_w8_amx = made_kernel("gated_w8_amx", _codes(_W8, "gated_panels"))
matmul_e4m3_amx = made_kernel("matmul_e4m3_amx", _codes(_E4M3, "plain"))
gated_e4m3_amx = made_kernel("gated_e4m3_amx", _codes(_E4M3, "gated_panels"))
matmul_e5m2_amx = made_kernel("matmul_e5m2_amx", _codes(_E5M2, "plain"))
gated_e5m2_amx = made_kernel("gated_e5m2_amx", _codes(_E5M2, "gated_panels"))
