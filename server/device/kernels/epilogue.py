"""What becomes of a matmul's sums: scaled to what they stand for, then stored as they are or as SwiGLU of two columns.

`value(sums, row_scale, column_scale)` makes float32 lanes of sixteen columns of one row. `store_pair` takes two
neighbouring column tiles of one row; for SwiGLU the first is gate and the second up, and only their product is stored.
"""

from __future__ import annotations

from typing import Any

from server.device.kernels import simd
from server.device.kernels.jit import inline


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


@inline
def plain_pair(output, n, left, right, width):  # type: ignore[no-untyped-def]
    """Columns 16n.. of one output row; `width` is 1 where there is no right-hand tile."""
    simd.store(output + n * 64, left)
    if width == 2:
        simd.store(output + n * 64 + 64, right)


@inline
def swiglu_pair(output, n, gate, up, width):  # type: ignore[no-untyped-def]
    """silu(gate) * up: sixteen columns from thirty-two."""
    one = simd.splat(1.0)
    sigmoid = simd.div(one, simd.add(one, simd.exp(simd.sub(simd.splat(0.0), gate))))
    simd.store(output + n * 32, simd.mul(simd.mul(gate, sigmoid), up))


STORES: dict[str, Any] = {"plain": plain_pair, "swiglu": swiglu_pair}
COLUMN_BYTES = {"plain": 64, "swiglu": 32}  # of one output row, for each column tile of weights
