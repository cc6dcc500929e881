"""The element types that a KV cache, an embedding or a panel lives in, as (size, load 16, store 16, store one).

Kernels that are the same for several are made once per type by a factory that takes a Cell; registers hold float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from neuronserve.server.kernels.isa import memory, simd


class Cell(NamedTuple):
    """How one element type is read and written."""

    size: int  # bytes
    load: Any  # address -> float32x16
    store: Any  # (address, float32x16)
    store_one: Any  # (address, float32)


BFLOAT16 = Cell(2, simd.load_bf16, simd.store_bf16, memory.store_bf16)
FLOAT32 = Cell(4, simd.load, simd.store, memory.store_f32)
