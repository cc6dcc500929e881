"""output = activations @ weights in float32 on any CPU: the exact path that the others are held against.

Layouts: activations panels [T/16][K/32][16 rows][32] float32; weights [N/16][K][16 n] float32 (K a multiple of 32).
Lanes are columns and k runs in order, so an element's sum has one order whatever T or the number of workers.
"""

from __future__ import annotations

from server.device.kernels import simd
from server.device.kernels.jit import inline, kernel
from server.device.kernels.matmul_lanes import lane_matmul
from server.device.kernels.memory import load_f32

_ROW = 128  # bytes of one activation row in a panel
_PANEL = 16 * _ROW
_LINE = 64  # bytes of 16 columns at one k


@inline
def _four_rows(a, b, c, k_tiles, ldc):  # type: ignore[no-untyped-def]
    c0 = c1 = c2 = c3 = simd.splat(0.0)
    for k in range(k_tiles):
        for i in range(32):
            w = simd.load(b + (k * 32 + i) * _LINE)
            at = a + k * _PANEL + i * 4
            c0 = simd.fma(simd.splat(load_f32(at)), w, c0)
            c1 = simd.fma(simd.splat(load_f32(at + _ROW)), w, c1)
            c2 = simd.fma(simd.splat(load_f32(at + 2 * _ROW)), w, c2)
            c3 = simd.fma(simd.splat(load_f32(at + 3 * _ROW)), w, c3)
    simd.store(c, c0)
    simd.store(c + 4 * ldc, c1)
    simd.store(c + 8 * ldc, c2)
    simd.store(c + 12 * ldc, c3)


@inline
def _one_row(a, b, c, k_tiles):  # type: ignore[no-untyped-def]
    c0 = simd.splat(0.0)
    for k in range(k_tiles):
        for i in range(32):
            w = simd.load(b + (k * 32 + i) * _LINE)
            c0 = simd.fma(simd.splat(load_f32(a + k * _PANEL + i * 4)), w, c0)
    simd.store(c, c0)


_matmul = lane_matmul(_four_rows, _one_row, _ROW)


@kernel
def matmul_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Items are the column tiles of every core."""
    _matmul(operands, cores, step, worker, workers)
