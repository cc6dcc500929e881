"""hidden[t] = table[token_ids[t]], from a row-major table or from the packed weights of a tied output layer.

The vocabulary is split over the cores; whichever core holds a token's row writes it.
"""

from __future__ import annotations

from typing import Any

from server.device.kernels import memory, simd
from server.device.kernels.cells import BFLOAT16, FLOAT32, Cell
from server.device.kernels.jit import inline, kernel, share_begin
from server.device.kernels.memory import load_i32, load_i64, store_f32
from server.device.kernels.records import EMBED, EMBED_BYTES, STEP


def _embed(copy_row: Any) -> Any:
    """The loop over tokens around one way to read a row."""

    @inline
    def embed(operands, step, worker, workers):  # type: ignore[no-untyped-def]
        tokens = load_i64(step + STEP.num_tokens)
        vocab_per_core, width = load_i64(operands + EMBED.vocab_per_core), load_i64(operands + EMBED.width)
        for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
            token = load_i32(load_i64(step + STEP.token_ids) + t * 4)
            op = operands + token // vocab_per_core * EMBED_BYTES
            copy_row(
                load_i64(op + EMBED.table), token % vocab_per_core, load_i64(op + EMBED.hidden) + t * width * 4, width
            )

    return embed


def _from_rows(cell: Cell) -> Any:
    load, size = cell.load, cell.size

    @inline
    def copy_row(table, row, hidden, width):  # type: ignore[no-untyped-def]
        for i in range(0, width, 16):
            simd.store(hidden + i * 4, load(table + (row * width + i) * size))

    return copy_row


@inline
def _from_tiles_bf16(table, row, hidden, width):  # type: ignore[no-untyped-def]
    base = table + (row // 16) * width * 32 + row % 16 * 4
    for k in range(width):
        store_f32(hidden + k * 4, memory.load_bf16(base + (k // 2) * 64 + k % 2 * 2))


@inline
def _from_tiles_f32(table, row, hidden, width):  # type: ignore[no-untyped-def]
    base = table + (row // 16) * width * 64 + row % 16 * 4
    for k in range(width):
        store_f32(hidden + k * 4, memory.load_f32(base + k * 64))


_rows_bf16, _rows_f32 = _embed(_from_rows(BFLOAT16)), _embed(_from_rows(FLOAT32))
_tiles_bf16, _tiles_f32 = _embed(_from_tiles_bf16), _embed(_from_tiles_f32)


@kernel
def embed_rows_bf16(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """From bfloat16 rows."""
    _rows_bf16(operands, step, worker, workers)


@kernel
def embed_rows_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """From float32 rows."""
    _rows_f32(operands, step, worker, workers)


@kernel
def embed_tiles_bf16(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """From the bfloat16 tiles of a tied output layer."""
    _tiles_bf16(operands, step, worker, workers)


@kernel
def embed_tiles_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """From the float32 tiles of a tied output layer."""
    _tiles_f32(operands, step, worker, workers)
