"""The two element types that activations, weights and KV live in, as (size, load 16, store 16, store one).

Kernels that are the same for both are made once per type by a factory that takes a Cell; in registers all is float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from server.device.kernels import memory, simd
from server.device.kernels.jit import inline


class Cell(NamedTuple):
    """How one element type is read and written."""

    size: int  # bytes
    load: Any  # address -> float32x16
    store: Any  # (address, float32x16)
    store_one: Any  # (address, float32)


BFLOAT16 = Cell(2, simd.load_bf16, simd.store_bf16, memory.store_bf16)
FLOAT32 = Cell(4, simd.load, simd.store, memory.store_f32)

PANEL = 512  # elements of one 16 x 32 panel


@inline
def panel_element(row: int, column: int, k_tiles: int) -> int:
    """Index of (row, column) in panels [rows/16][k_tiles][16][32]."""
    return ((row // 16) * k_tiles + column // 32) * PANEL + row % 16 * 32 + column % 32
