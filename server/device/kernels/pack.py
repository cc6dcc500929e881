"""Activations that attention or SwiGLU left as float32 rows, into the panels of the matmul that reads them next."""

from __future__ import annotations

from typing import Any

from server.device.kernels.jit import inline, kernel, share_begin
from server.device.kernels.memory import load_i64
from server.device.kernels.panels import pack_bf16, pack_f32, pack_i8
from server.device.kernels.records import PACK, PACK_BYTES, STEP


def _pack_rows(pack: Any) -> Any:
    @inline
    def pack_rows(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        rows, width = load_i64(step + STEP.num_tokens), load_i64(operands + PACK.width)
        for item in range(share_begin(cores * rows, worker, workers), share_begin(cores * rows, worker + 1, workers)):
            row = item % rows
            op = operands + item // rows * PACK_BYTES
            source = load_i64(op + PACK.rows) + row * width * 4
            pack(source, load_i64(op + PACK.panels), load_i64(op + PACK.row_scales), row, width)

    return pack_rows


_bf16, _f32, _i8 = _pack_rows(pack_bf16), _pack_rows(pack_f32), _pack_rows(pack_i8)


@kernel
def pack_rows_bf16(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """To bfloat16 panels. Items are rows of every core."""
    _bf16(operands, cores, step, worker, workers)


@kernel
def pack_rows_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """To float32 panels. Items are rows of every core."""
    _f32(operands, cores, step, worker, workers)


@kernel
def pack_rows_i8(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """To int8 panels and row scales. Items are rows of every core."""
    _i8(operands, cores, step, worker, workers)
