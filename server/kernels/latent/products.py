"""Dot products of rows of float32 with rows of a table: scores of latents, and values of heads."""

from __future__ import annotations

from typing import Any

from ..isa import simd
from ..isa.jit import inline
from ..isa.memory import store_f32


def four_row_products(load: Any, size: int) -> Any:
    """Return the loop over the rows of a table of elements that `load` reads, `size` bytes each."""

    @inline
    def products(x, x1, x2, x3, w, step, to, to1, to2, to3, length, count):  # type: ignore[no-untyped-def]
        """Write the products of four rows with `count` rows, `step` bytes apart, two of these at a time.

        `length` is rounded up to sixteen.
        """
        for j in range(0, count, 2):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = simd.splat(0.0)
            second = min(j + 1, count - 1)
            first_row, second_row = w + j * step, w + second * step
            for d in range(0, length, 16):
                a, b = load(first_row + d * size), load(second_row + d * size)
                y0, y1 = simd.load(x + d * 4), simd.load(x1 + d * 4)
                y2, y3 = simd.load(x2 + d * 4), simd.load(x3 + d * 4)
                a0, b0 = simd.fma(y0, a, a0), simd.fma(y0, b, b0)
                a1, b1 = simd.fma(y1, a, a1), simd.fma(y1, b, b1)
                a2, b2 = simd.fma(y2, a, a2), simd.fma(y2, b, b2)
                a3, b3 = simd.fma(y3, a, a3), simd.fma(y3, b, b3)
            store_f32(to + j * 4, simd.sum_lanes(a0))
            store_f32(to + second * 4, simd.sum_lanes(b0))
            store_f32(to1 + j * 4, simd.sum_lanes(a1))
            store_f32(to1 + second * 4, simd.sum_lanes(b1))
            store_f32(to2 + j * 4, simd.sum_lanes(a2))
            store_f32(to2 + second * 4, simd.sum_lanes(b2))
            store_f32(to3 + j * 4, simd.sum_lanes(a3))
            store_f32(to3 + second * 4, simd.sum_lanes(b3))

    return products
