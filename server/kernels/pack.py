"""Packs activations of attention or of a gated product, rows or panels, into the panels of the next matmul."""

from __future__ import annotations

from typing import Any

from neuronserve.server.kernels.isa.jit import inline, kernel, share_begin
from neuronserve.server.kernels.isa.memory import load_i64
from neuronserve.server.kernels.panels import (
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
from neuronserve.server.kernels.records import PACK, PACK_BYTES, STEP


def _pack_rows(pack: Any, row_cell: int) -> Any:
    """Return the loop over rows. `row_cell` is the size of an element of consecutive rows, 0 for panels."""

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


_bf16, _f32, _i8 = _pack_rows(pack_bf16, 4), _pack_rows(pack_f32, 4), _pack_rows(pack_i8, 4)
_i8_rotated, _panels_i8_rotated = _pack_rows(pack_i8_rotated, 4), _pack_rows(panels_to_i8_rotated, 0)
_i8_chunks, _panels_i8_chunks = _pack_rows(pack_i8_chunks, 4), _pack_rows(panels_to_i8_chunks, 0)
_panels_f32, _panels_i8 = _pack_rows(panels_to_f32, 0), _pack_rows(panels_to_i8, 0)


@kernel
def pack_rows_bf16(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Pack to bfloat16 panels. Items are rows of every core."""
    _bf16(operands, cores, step, worker, workers)


@kernel
def pack_rows_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Pack to float32 panels. Items are rows of every core."""
    _f32(operands, cores, step, worker, workers)


@kernel
def pack_rows_i8(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Pack to int8 panels and row scales. Items are rows of every core."""
    _i8(operands, cores, step, worker, workers)


@kernel
def repack_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Convert bfloat16 panels to float32 panels. Items are rows of every core."""
    _panels_f32(operands, cores, step, worker, workers)


@kernel
def repack_i8(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Convert bfloat16 panels to int8 panels and row scales. Items are rows of every core."""
    _panels_i8(operands, cores, step, worker, workers)


@kernel
def pack_rows_i8_rotated(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Pack to int8 panels and row scales, rotated. Items are rows of every core."""
    _i8_rotated(operands, cores, step, worker, workers)


@kernel
def repack_i8_rotated(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Convert bfloat16 panels to int8 panels and row scales, rotated. Items are rows of every core."""
    _panels_i8_rotated(operands, cores, step, worker, workers)


@kernel
def pack_rows_i8_chunks(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Pack to int8 panels with a scale for each 32 of a row. Items are rows of every core."""
    _i8_chunks(operands, cores, step, worker, workers)


@kernel
def repack_i8_chunks(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Convert bfloat16 panels to int8 panels with a scale for each 32 of a row. Items are rows of every core."""
    _panels_i8_chunks(operands, cores, step, worker, workers)
