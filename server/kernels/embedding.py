"""hidden[t] = table[token_ids[t]] * scale, from a row-major table or from the packed tiles of a tied output layer.

The vocabulary is split over the cores; whichever core holds a token's row writes it.
"""

from __future__ import annotations

from typing import Any

from server.kernels.isa import memory, simd
from server.kernels.isa.element_types import BFLOAT16, FLOAT32, Cell
from server.kernels.isa.jit import inline, kernel, share_begin
from server.kernels.isa.memory import load_f32, load_i32, load_i64, store_f32
from server.kernels.records import EMBED, EMBED_BYTES, STEP


def _embed(copy_row: Any) -> Any:
    """The loop over tokens around one way to read a row."""

    @inline
    def embed(operands, step, worker, workers):  # type: ignore[no-untyped-def]
        tokens = load_i64(step + STEP.num_tokens)
        vocab_per_core, width = load_i64(operands + EMBED.vocab_per_core), load_i64(operands + EMBED.width)
        for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
            token = load_i32(load_i64(step + STEP.token_ids) + t * 4)
            op, row = operands + token // vocab_per_core * EMBED_BYTES, token % vocab_per_core
            scale = load_f32(op + EMBED.scale)
            if load_i64(op + EMBED.scales) != 0:
                scale *= load_f32(load_i64(op + EMBED.scales) + row * 4)
            copy_row(load_i64(op + EMBED.table), row, load_i64(op + EMBED.hidden) + t * width * 4, width, scale)

    return embed


def _from_rows(cell: Cell) -> Any:
    load, size = cell.load, cell.size

    @inline
    def copy_row(table, row, hidden, width, scale):  # type: ignore[no-untyped-def]
        by = simd.splat(scale)
        for i in range(0, width, 16):
            simd.store(hidden + i * 4, simd.mul(load(table + (row * width + i) * size), by))

    return copy_row


def _from_tiles(load_one: Any, per_word: int) -> Any:
    """Tiles [N/16][K words][16 n] of 4-byte words, `per_word` elements of k in each."""
    size = 4 // per_word

    @inline
    def copy_row(table, row, hidden, width, scale):  # type: ignore[no-untyped-def]
        base = table + (row // 16) * width * 16 * size + row % 16 * 4
        for k in range(width):
            value = load_one(base + (k // per_word) * 64 + k % per_word * size)
            store_f32(hidden + k * 4, value * scale)

    return copy_row


_rows_bf16, _rows_f32 = _embed(_from_rows(BFLOAT16)), _embed(_from_rows(FLOAT32))
_tiles_bf16, _tiles_f32 = _embed(_from_tiles(memory.load_bf16, 2)), _embed(_from_tiles(memory.load_f32, 1))
_tiles_i8 = _embed(_from_tiles(memory.load_i8, 4))
_tiles_e4m3, _tiles_e5m2 = _embed(_from_tiles(memory.load_e4m3, 4)), _embed(_from_tiles(memory.load_e5m2, 4))


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
    """From bfloat16 tiles."""
    _tiles_bf16(operands, step, worker, workers)


@kernel
def embed_tiles_f32(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """From float32 tiles."""
    _tiles_f32(operands, step, worker, workers)


@kernel
def embed_tiles_i8(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """From int8 tiles."""
    _tiles_i8(operands, step, worker, workers)


@kernel
def embed_tiles_e4m3(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """From float8 e4m3 tiles."""
    _tiles_e4m3(operands, step, worker, workers)


@kernel
def embed_tiles_e5m2(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """From float8 e5m2 tiles."""
    _tiles_e5m2(operands, step, worker, workers)
