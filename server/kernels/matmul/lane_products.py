"""Inner loops of the matmuls on vector lanes: sums of one row, of four or of eight, by two column tiles.

Lanes are columns and k runs in order, whichever rows are multiplied together, so an element's sum has one order. Sums
go through memory on the worker's stack, so that the epilogue is compiled once for each kernel, not for each row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..isa import neon, simd
from ..isa.jit import inline
from ..isa.memory import prefetch, prefetch_to_l2, stack_lines
from .loop import LINE

ROWS = 4  # multiplied together, or twice as many; a panel's sixteen rows are a multiple
SUMS = 2 * LINE  # bytes of one row's sums of two column tiles
PANEL_ROWS = 16


class Step(NamedTuple):
    """How lines of weights are multiplied by activations."""

    dot: Any  # (sums, word, line) -> sums
    lines: int  # lines of weights along one panel row
    word: int = 4  # bytes from the activations of a line to those of the next
    row: int = 64  # bytes of a panel row
    at_once: int = 1  # lines that `dot` takes at once
    ahead: int = 0  # distance of prefetches for one row; 0: none


stack_sums = stack_lines(2 * ROWS * SUMS // 64)


def one_row(step: Step) -> Any:
    """Return the product for decode: two column tiles, whose sums do not wait for each other."""
    dot, lines, word, row, at_once, first = step
    panel, last = PANEL_ROWS * row, first + at_once * LINE if first else 0

    @inline
    def products(a, b0, b1, panels, sums):  # type: ignore[no-untyped-def]
        c = d = simd.splat(0.0)
        for k in range(panels):
            for i in range(0, lines, at_once):
                at, left = a + k * panel + i * word, b0 + (k * lines + i) * LINE
                for ahead in range(first, last, LINE):
                    prefetch(left + ahead)
                    prefetch(left + b1 - b0 + ahead)
                c, d = dot(c, at, left), dot(d, at, left + b1 - b0)
        simd.store(sums, c)
        simd.store(sums + LINE, d)

    return products


def by_tile(step: Step, panel: int) -> Any:
    """Return the product of four rows, with panels `panel` bytes apart, by one column tile, then the other.

    Sums take eight of 16 registers.
    """
    dot, lines, word, row, at_once, _ = step

    @inline
    def of_tile(a, b, panels, sums):  # type: ignore[no-untyped-def]
        c0 = c1 = c2 = c3 = simd.splat(0.0)
        for k in range(panels):
            for i in range(0, lines, at_once):
                at, line = a + k * panel + i * word, b + (k * lines + i) * LINE
                c0, c1 = dot(c0, at, line), dot(c1, at + row, line)
                c2, c3 = dot(c2, at + 2 * row, line), dot(c3, at + 3 * row, line)
        simd.store(sums, c0)
        simd.store(sums + SUMS, c1)
        simd.store(sums + 2 * SUMS, c2)
        simd.store(sums + 3 * SUMS, c3)

    return _both_tiles(of_tile)


def _both_tiles(of_tile: Any) -> Any:
    """Return the product of column tiles one after the other."""

    @inline
    def products(a, b0, b1, width, panels, sums, ahead):  # type: ignore[no-untyped-def]
        for tile in range(width):
            of_tile(a, b0 + tile * (b1 - b0), panels, sums + tile * LINE)

    return products


def _four_rows(step: Step) -> Any:
    dot, row = step.dot, step.row

    @inline
    def add(c0, c1, c2, c3, d0, d1, d2, d3, at, left, right):  # type: ignore[no-untyped-def]
        """Add to the sums of four rows by two column tiles their products with the lines `left` and `right`."""
        c0, d0 = dot(c0, at, left), dot(d0, at, right)
        c1, d1 = dot(c1, at + row, left), dot(d1, at + row, right)
        c2, d2 = dot(c2, at + 2 * row, left), dot(d2, at + 2 * row, right)
        c3, d3 = dot(c3, at + 3 * row, left), dot(d3, at + 3 * row, right)
        return c0, c1, c2, c3, d0, d1, d2, d3

    return add


@inline
def _store_rows(sums, c0, c1, c2, c3, d0, d1, d2, d3):  # type: ignore[no-untyped-def]
    store_tiles(sums, c0, d0)
    store_tiles(sums + SUMS, c1, d1)
    store_tiles(sums + 2 * SUMS, c2, d2)
    store_tiles(sums + 3 * SUMS, c3, d3)


@inline
def _fetch(ahead, k):  # type: ignore[no-untyped-def]
    """Prefetch what is due beside panel k: `ahead` is an address, and the bytes from it on for each panel."""
    first, size = ahead
    for at in range(first + k * size, first + (k + 1) * size, LINE):
        prefetch_to_l2(at)


def by_two_tiles(step: Step, panel: int) -> Any:
    """Return the product of four rows by two column tiles at once, for hosts with 32 registers of 512 bits."""
    add, lines, word, at_once = _four_rows(step), step.lines, step.word, step.at_once

    @inline
    def products(a, b0, b1, width, panels, sums, ahead):  # type: ignore[no-untyped-def]
        c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = simd.splat(0.0)
        for k in range(panels):
            _fetch(ahead, k)
            for i in range(0, lines, at_once):
                at, line = a + k * panel + i * word, (k * lines + i) * LINE
                c0, c1, c2, c3, d0, d1, d2, d3 = add(c0, c1, c2, c3, d0, d1, d2, d3, at, b0 + line, b1 + line)
        _store_rows(sums, c0, c1, c2, c3, d0, d1, d2, d3)

    return products


def eight_by_two_tiles(step: Step, panel: int) -> Any:
    """Return the product of eight rows by two column tiles at once: sums take sixteen of 32 registers.

    VDPBF16PS needs that many sums that do not wait for each other: hosts begin two a cycle, and each takes six.
    """
    add, lines, word, row, at_once = _four_rows(step), step.lines, step.word, step.row, step.at_once

    @inline
    def products(a, b0, b1, width, panels, sums, ahead):  # type: ignore[no-untyped-def]
        c0 = c1 = c2 = c3 = c4 = c5 = c6 = c7 = simd.splat(0.0)
        d0 = d1 = d2 = d3 = d4 = d5 = d6 = d7 = simd.splat(0.0)
        for k in range(panels):
            _fetch(ahead, k)
            for i in range(0, lines, at_once):
                at, line = a + k * panel + i * word, (k * lines + i) * LINE
                left, right = b0 + line, b1 + line
                c0, c1, c2, c3, d0, d1, d2, d3 = add(c0, c1, c2, c3, d0, d1, d2, d3, at, left, right)
                at += 4 * row
                c4, c5, c6, c7, d4, d5, d6, d7 = add(c4, c5, c6, c7, d4, d5, d6, d7, at, left, right)
        _store_rows(sums, c0, c1, c2, c3, d0, d1, d2, d3)
        _store_rows(sums + 4 * SUMS, c4, c5, c6, c7, d4, d5, d6, d7)

    return products


def by_row_pairs(pairs: neon.RowPairs) -> Any:
    """Return `by_tile` for ARM hosts that multiply two rows by two columns: sums take sixteen of 32 registers."""
    left, right = pairs

    def four_rows(step: Step, panel: int) -> Any:
        lines, word, row = step.lines, step.word, step.row

        @inline
        def of_tile(a, b, panels, sums):  # type: ignore[no-untyped-def]
            c0 = c1 = d0 = d1 = simd.splat(0.0)
            for k in range(panels):
                for i in range(0, lines, 2):
                    at, line = a + k * panel + i * word, b + (k * lines + i) * LINE
                    c0, c1 = left(c0, at, line), right(c1, at, line)
                    d0, d1 = left(d0, at + 2 * row, line), right(d1, at + 2 * row, line)
            simd.store(sums, neon.first_row(c0, c1))
            simd.store(sums + SUMS, neon.second_row(c0, c1))
            simd.store(sums + 2 * SUMS, neon.first_row(d0, d1))
            simd.store(sums + 3 * SUMS, neon.second_row(d0, d1))

        return _both_tiles(of_tile)

    return four_rows


@inline
def store_tiles(sums, c, d):  # type: ignore[no-untyped-def]
    """Store one row's sums of two column tiles."""
    simd.store(sums, c)
    simd.store(sums + LINE, d)


class Widened(NamedTuple):
    """A wider type of activations for products of four rows, converted once for both column tiles."""

    widen: Any  # (panel row, target)
    step: Step


def widened(wide: Widened, four_rows: Any) -> Any:
    """Return the function `(a, b0, b1, width, panels, sums, scratch, ahead)` of four rows of panels of 64-byte rows."""
    widen, step = wide
    target_row, size = step.row, ROWS * step.row
    products = four_rows(step, size)

    @inline
    def of_four(a, b0, b1, width, panels, sums, scratch, ahead):  # type: ignore[no-untyped-def]
        for k in range(panels):
            for row in range(ROWS):
                widen(a + (k * PANEL_ROWS + row) * 64, scratch + k * size + row * target_row)
        products(scratch, b0, b1, width, panels, sums, ahead)

    return of_four


def unchanged(step: Step, four_rows: Any) -> Any:
    """Return the same function for activations that are not converted."""
    products = four_rows(step, PANEL_ROWS * step.row)

    @inline
    def of_four(a, b0, b1, width, panels, sums, scratch, ahead):  # type: ignore[no-untyped-def]
        products(a, b0, b1, width, panels, sums, ahead)

    return of_four
