"""What becomes of a matmul's sums: scaled to what they stand for, then stored as they are or as SwiGLU of two columns.

`value(sums, row_scale, column_scale)` makes float32 lanes of sixteen columns of one row. An Output takes two
neighbouring column tiles of one row; for SwiGLU the first is gate and the second up, and only their product is stored:
  plain          rows [T][ldc] float32
  swiglu         rows [T][ldc] float32, half as many columns
  swiglu_panels  panels [T/16][ldc/32][16][32] bfloat16 of those columns: half the bytes, and what tiles are loaded from
"""

from __future__ import annotations

from typing import Any, NamedTuple

from server.kernels.isa import avx512, simd
from server.kernels.isa.jit import inline

PANEL_BYTES = 1024  # sixteen rows of 32 bfloat16


@inline
def unscaled(sums, row_scale, column_scale):  # type: ignore[no-untyped-def]
    """float32 sums of unscaled activations and weights."""
    return sums


@inline
def scaled_columns(sums, row_scale, column_scale):  # type: ignore[no-untyped-def]
    """float32 sums of unscaled activations and 8-bit weights."""
    return simd.mul(sums, column_scale)


@inline
def scaled_both(sums, row_scale, column_scale):  # type: ignore[no-untyped-def]
    """int32 sums, already as float32, of int8 activations and int8 weights."""
    return simd.mul(simd.mul(sums, simd.splat(row_scale)), column_scale)


class Output(NamedTuple):
    """Where the sums of column tiles n and n + 1 go, in one row."""

    place: Any  # (output, ldc, row, n) -> address
    store: Any  # (place, left, right, width); `width` is 1 where there is no right-hand tile


@inline
def _plain_place(output, ldc, row, n):  # type: ignore[no-untyped-def]
    return output + row * ldc * 4 + n * 64


@inline
def _plain_store(place, left, right, width):  # type: ignore[no-untyped-def]
    simd.store(place, left)
    if width == 2:
        simd.store(place + 64, right)


@inline
def _row_place(output, ldc, row, n):  # type: ignore[no-untyped-def]
    return output + row * ldc * 4 + n * 32


@inline
def _row_store(place, gate, up, width):  # type: ignore[no-untyped-def]
    """silu(gate) * up: sixteen columns from thirty-two."""
    one = simd.splat(1.0)
    sigmoid = simd.div(one, simd.add(one, simd.exp(simd.sub(simd.splat(0.0), gate))))
    simd.store(place, simd.mul(simd.mul(gate, sigmoid), up))


@inline
def _panel_place(output, ldc, row, n):  # type: ignore[no-untyped-def]
    return output + (row // 16 * (ldc // 32) + n // 4) * PANEL_BYTES + row % 16 * 64 + n // 2 % 2 * 32


@inline
def _panel_store(place, gate, up, width):  # type: ignore[no-untyped-def]
    """The same, as exact as bfloat16 is."""
    avx512.store_bf16(place, simd.mul(avx512.silu(gate), up))


OUTPUTS = {
    "plain": Output(_plain_place, _plain_store),
    "swiglu": Output(_row_place, _row_store),
    "swiglu_panels": Output(_panel_place, _panel_store),
}
