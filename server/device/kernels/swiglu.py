"""panels = silu(gate) * up, between the gate-up matmul and the down matmul."""

from __future__ import annotations

from typing import Any

from server.device.kernels import simd
from server.device.kernels.cells import BFLOAT16, FLOAT32, Cell, panel_element
from server.device.kernels.jit import inline, kernel, share_begin
from server.device.kernels.memory import load_i64
from server.device.kernels.records import STEP, SWIGLU, SWIGLU_BYTES


def _swiglu(cell: Cell) -> Any:
    store, cell_size = cell.store, cell.size

    @inline
    def swiglu(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        rows, size = load_i64(step + STEP.num_tokens), load_i64(operands + SWIGLU.size)
        per_core = rows * (size // 16)
        total = cores * per_core
        one = simd.splat(1.0)
        for item in range(share_begin(total, worker, workers), share_begin(total, worker + 1, workers)):
            op = operands + item // per_core * SWIGLU_BYTES
            row, tile = item % per_core // (size // 16), item % (size // 16)
            at = load_i64(op + SWIGLU.gate_up) + (row * 2 * size + tile * 32) * 4
            gate, up = simd.load(at), simd.load(at + 64)
            sigmoid = simd.div(one, simd.add(one, simd.exp(simd.sub(simd.splat(0.0), gate))))
            to = load_i64(op + SWIGLU.panels) + panel_element(row, tile * 16, size // 32) * cell_size
            store(to, simd.mul(simd.mul(gate, sigmoid), up))

    return swiglu


_bf16, _f32 = _swiglu(BFLOAT16), _swiglu(FLOAT32)


@kernel
def swiglu_bf16(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into bfloat16 panels. Items are 16 columns of one row of one core."""
    _bf16(operands, cores, step, worker, workers)


@kernel
def swiglu_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Into float32 panels. Items are 16 columns of one row of one core."""
    _f32(operands, cores, step, worker, workers)
