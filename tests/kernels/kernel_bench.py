"""Run one kernel on numpy arrays: panels, tiles and addresses for tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from neuronserve.server.config.formats import Isa, WeightFormat
from neuronserve.server.device.layout import round_up
from neuronserve.server.host.address_map import ADDRESSES
from neuronserve.server.kernels.attention.items import COUNTER_BYTES
from neuronserve.server.kernels.dispatch import linear_kernels
from neuronserve.server.kernels.isa.jit import Kernel
from neuronserve.server.kernels.matmul.packing import pack_weights
from neuronserve.server.kernels.program import Program
from neuronserve.server.kernels.records import StepRecord
from neuronserve.server.kernels.workers import WorkerPool

Array = npt.NDArray[Any]
Path = tuple[WeightFormat, Isa]  # kernels of a format on an instruction set
IS_EMULATED = "tests.kernels.emulated" in sys.modules


def default_paths(paths: Sequence[Path]) -> list[Path]:
    """Return this host's best path and the portable one of each format, or all paths if the run emulates them."""
    return [path for path in paths if IS_EMULATED or path[1] in (linear_kernels(path[0]).isa, "portable")]


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return a zeroed array that begins on a cache line, as core memory does."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size].view(dtype).reshape(shape)


def to_cell(values: Array, cell: str) -> Array:
    """Convert float32 values to the element type of a kernel: bfloat16 bits or float32."""
    if cell == "bf16":
        return values.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    return values.astype(np.float32)


def from_cell(values: Array) -> Array:
    if values.dtype == np.uint16:
        return values.view(ml_dtypes.bfloat16).astype(np.float32)
    return values


def rounded(values: Array, cell: str) -> Array:
    """Return float32 values that the element type holds exactly."""
    return from_cell(to_cell(values, cell))


CODES = {"bf16": np.uint16, "f32": np.float32, "i8": np.int8}


def to_panels(rows: Array, cell: str) -> Array:
    """Convert [T, K] to panels [T/16][K/32][16][32], or [T/16][K/64][16][64] of int8 codes."""
    (num_rows, k), k_tile = rows.shape, 64 if cell == "i8" else 32
    padded = np.zeros((round_up(num_rows, 16), k), np.float32)
    padded[:num_rows] = rows
    panels = padded.reshape(-1, 16, k // k_tile, k_tile).transpose(0, 2, 1, 3)
    out = aligned(panels.shape, CODES[cell])
    out[:] = panels if cell == "i8" else to_cell(panels, cell)
    return out


def from_panels(panels: Array, num_rows: int) -> Array:
    """Convert panels back to [T, K] float32."""
    tiles, k_tiles, _, k_tile = panels.shape
    return from_cell(panels).transpose(0, 2, 1, 3).reshape(tiles * 16, k_tiles * k_tile)[:num_rows]


def to_tiles(matrix: Array, cell: str) -> Array:
    """Convert [N, K] to packed weight tiles, as bytes."""
    cells = matrix if matrix.dtype == np.uint8 else to_cell(matrix, cell)
    out = aligned((cells.nbytes,), np.uint8)
    pack_weights(cells, out)
    return out


def address(array: Array | None, is_indirect: bool = False) -> int:
    """Return an array's address, and register it, so that kernels may access it."""
    if array is None:
        return 0
    ADDRESSES.register("test array", array, is_indirect)
    return int(array.ctypes.data)


def float_bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def step_record(**fields: int) -> StepRecord:
    turned = {"rope_rows": fields.get("positions", 0)}
    return StepRecord(**(dict.fromkeys(StepRecord._fields, 0) | turned | fields))


def work_counters(pool: WorkerPool, value: int = 0) -> Array:
    """Return attention's counters of each worker's share."""
    return np.full(pool.num_threads * COUNTER_BYTES // 8, value, np.int64)


def run(
    pool: WorkerPool, kernel: Kernel, operands: Sequence[tuple[int, ...]], step: StepRecord, shares: int = 0
) -> None:
    """Run the kernel once on the cores that `operands` has records for, `shares` above 0 by rows."""
    program = Program("test", None)
    program.add(kernel.name, kernel, operands)
    record = np.array(step, np.int64)
    pool.run(program, record.ctypes.data, shares=shares)
