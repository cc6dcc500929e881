"""Packs activations of attention or of a gated product, rows or panels, into the panels of the next matmul."""

from __future__ import annotations

from typing import Any

from .isa.jit import inline, made_kernel, share_begin
from .isa.memory import load_i64
from .panels import (
    pack_bf16,
    pack_f32,
    pack_i8,
    pack_i8_chunks,
    pack_i8_rotated,
    panels_to_f32,
    panels_to_i8,
    panels_to_i8_chunks,
    panels_to_i8_rotated,
)
from .records import PACK, PACK_BYTES, STEP


def _pack_rows(pack: Any, row_cell: int) -> Any:
    """Return a kernel's loop over the rows of every core.

    `row_cell` is the size of an element of consecutive rows, 0 for panels.
    """

    @inline
    def pack_rows(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        rows = load_i64(step + STEP.num_tokens) * load_i64(operands + PACK.per_token)
        width = load_i64(operands + PACK.width)
        sources, targets = load_i64(operands + PACK.source_rows), load_i64(operands + PACK.target_rows)
        scratch = load_i64(operands + PACK.scratch) + worker * load_i64(operands + PACK.scratch_stride)
        for item in range(share_begin(cores * rows, worker, workers), share_begin(cores * rows, worker + 1, workers)):
            row = source_row = item % rows
            op = operands + item // rows * PACK_BYTES
            if sources != 0:
                source_row = load_i64(sources + row * 8)
            if targets != 0:
                row = load_i64(targets + row * 8)
            source = load_i64(op + PACK.source) + source_row * width * row_cell
            pack(source, load_i64(op + PACK.panels), load_i64(op + PACK.row_scales), row, width, scratch)

    return pack_rows


pack_rows_bf16 = made_kernel("pack_rows_bf16", _pack_rows(pack_bf16, 4))
pack_rows_f32 = made_kernel("pack_rows_f32", _pack_rows(pack_f32, 4))
pack_rows_i8 = made_kernel("pack_rows_i8", _pack_rows(pack_i8, 4))
pack_rows_i8_rotated = made_kernel("pack_rows_i8_rotated", _pack_rows(pack_i8_rotated, 4))
pack_rows_i8_chunks = made_kernel("pack_rows_i8_chunks", _pack_rows(pack_i8_chunks, 4))
repack_f32 = made_kernel("repack_f32", _pack_rows(panels_to_f32, 0))
repack_i8 = made_kernel("repack_i8", _pack_rows(panels_to_i8, 0))
repack_i8_rotated = made_kernel("repack_i8_rotated", _pack_rows(panels_to_i8_rotated, 0))
repack_i8_chunks = made_kernel("repack_i8_chunks", _pack_rows(panels_to_i8_chunks, 0))
