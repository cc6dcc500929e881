"""Element types of an embedding, an adapter or a panel: float32 in registers, bfloat16 or float32 in memory.

Kernels that are the same for several types are made once for each by a factory that takes a Cell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import simd


class Cell(NamedTuple):
    """How one element type is read and written."""

    size: int  # bytes
    load: Any  # address -> float32x16
    store: Any  # (address, float32x16)


BFLOAT16 = Cell(2, simd.load_bf16, simd.store_bf16)
FLOAT32 = Cell(4, simd.load, simd.store)
