"""hidden[t] = table[token_ids[t]] * scale, from a row-major table or from the packed tiles of a tied output layer.

Rows of positions and of token types are added afterwards. The vocabulary is split over the cores; the core that holds
a token's row writes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .isa import memory, simd
from .isa.element_types import BFLOAT16, FLOAT32, Cell
from .isa.jit import inline, made_kernel, share_begin
from .isa.memory import load_f32, load_i32, load_i64, load_u8, store_f32
from .records import ADD_ROWS, EMBED, EMBED_BYTES, STEP
from .rotation import rotate_back


def _embed(copy_row: Any) -> Any:
    """Return a kernel's loop over tokens for one way to read a row."""

    @inline
    def embed(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        tokens = load_i64(step + STEP.num_tokens)
        vocab_per_core, width = load_i64(operands + EMBED.vocab_per_core), load_i64(operands + EMBED.width)
        for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
            token = load_i32(load_i64(step + STEP.token_ids) + t * 4)
            op, row = operands + token // vocab_per_core * EMBED_BYTES, token % vocab_per_core
            copy_row(op, row, load_i64(op + EMBED.hidden) + t * width * 4, width)

    return embed


def _from_rows(cell: Cell) -> Any:
    load, size = cell.load, cell.size

    @inline
    def copy_row(op, row, hidden, width):  # type: ignore[no-untyped-def]
        table, by = load_i64(op + EMBED.table), simd.splat(load_f32(op + EMBED.scale))
        for i in range(0, width, 16):
            simd.store(hidden + i * 4, simd.mul(load(table + (row * width + i) * size), by))

    return copy_row


def _from_tiles(load_one: Any, per_word: int, is_rotated: bool = False) -> Any:
    """Read tiles [N/16][K words][16 n] of 4-byte words, each with `per_word` elements of k."""
    size = 4 // per_word

    @inline
    def copy_row(op, row, hidden, width):  # type: ignore[no-untyped-def]
        scale = load_f32(op + EMBED.scale)
        if load_i64(op + EMBED.scales) != 0:
            scale *= load_f32(load_i64(op + EMBED.scales) + row * 4)
        base = load_i64(op + EMBED.table) + (row // 16) * width * 16 * size + row % 16 * 4
        for k in range(width):
            value = load_one(base + (k // per_word) * 64 + k % per_word * size)
            store_f32(hidden + k * 4, value * scale)
        if is_rotated:
            rotate_back(hidden, width)

    return copy_row


def _add_rows(cell: Cell) -> Any:
    load, size = cell.load, cell.size

    @inline
    def add_rows(op, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        tokens, width = load_i64(step + STEP.num_tokens), load_i64(op + ADD_ROWS.width)
        table, index_field = load_i64(op + ADD_ROWS.table), load_i64(op + ADD_ROWS.index_field)
        for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
            row, hidden = load_i64(op + ADD_ROWS.first), load_i64(op + ADD_ROWS.hidden) + t * width * 4
            if index_field != 0:
                row += load_i32(load_i64(step + index_field) + t * 4)
            for i in range(0, width, 16):
                value = simd.add(simd.load(hidden + i * 4), load(table + (row * width + i) * size))
                simd.store(hidden + i * 4, value)

    return add_rows


def _from_groups(load_value: Any, chunk_bytes: int, load_scale: Any) -> Any:
    """Read pairs of tiles of codes with scales and shifts of groups (group_lanes.py).

    `load_value(address, k)` returns a code's value; `address` is that of the column's codes for 32 of k.
    """

    @inline
    def copy_row(op, row, hidden, width):  # type: ignore[no-untyped-def]
        scale, shift = load_f32(op + EMBED.scale), load_i64(op + EMBED.group_shift)
        scales, shifts = load_i64(op + EMBED.scales), load_i64(op + EMBED.shifts)
        groups = ((width // 32 - 1) >> shift) + 1
        first = row // 32 * 2  # tile of the pair
        tiles, tile = min(2, load_i64(op + EMBED.vocab_per_core) // 16 - first), row // 16 - first
        base = load_i64(op + EMBED.table) + (first * (width // 32) + tile) * chunk_bytes + row % 16 * 4
        for k in range(width):
            at = ((first * groups + (k // 32 >> shift) * tiles + tile) * 16 + row % 16) * 2
            value = load_value(base + k // 32 * tiles * chunk_bytes, k % 32) * load_scale(scales + at)
            if shifts != 0:
                value += load_scale(shifts + at) * -8.0
            store_f32(hidden + k * 4, value * scale)

    return copy_row


@inline
def _nibble(codes, k):  # type: ignore[no-untyped-def]
    byte = load_u8(codes + k // 8 * 64 + k % 4)
    return byte >> 4 if k % 8 >= 4 else byte & 15


@inline
def _int4_at(codes, k):  # type: ignore[no-untyped-def]
    return np.float32(_nibble(codes, k) - 8)


@inline
def _int8_at(codes, k):  # type: ignore[no-untyped-def]
    return np.float32(load_u8(codes + k // 4 * 64 + k % 4) - 128)


@inline
def _e2m1_at(codes, k):  # type: ignore[no-untyped-def]
    """Return twice the code's value, because its scale is half."""
    code = _nibble(codes, k)
    size = code & 7
    value = np.float32(size) if size < 4 else np.float32((2 + (size & 1)) << ((size >> 1) - 1))
    return -value if code > 7 else value


def _from_bytes(load_one: Any) -> Any:
    """Read tiles of 8-bit codes with a bfloat16 scale for each 32 of k (weight_codes.py)."""

    @inline
    def copy_row(op, row, hidden, width):  # type: ignore[no-untyped-def]
        by, n = load_f32(op + EMBED.scale), row % 16
        base = load_i64(op + EMBED.table) + row // 16 * width * 16 + n * 4
        scales = load_i64(op + EMBED.scales) + row // 16 * width + n * 2
        for k in range(width):
            value = load_one(base + k // 4 * 64 + k % 4) * memory.load_bf16(scales + k // 32 * 32)
            store_f32(hidden + k * 4, value * by)

    return copy_row


embed_rows_bf16 = made_kernel("embed_rows_bf16", _embed(_from_rows(BFLOAT16)))
embed_rows_f32 = made_kernel("embed_rows_f32", _embed(_from_rows(FLOAT32)))
add_rows_bf16 = made_kernel("add_rows_bf16", _add_rows(BFLOAT16))
add_rows_f32 = made_kernel("add_rows_f32", _add_rows(FLOAT32))
embed_tiles_bf16 = made_kernel("embed_tiles_bf16", _embed(_from_tiles(memory.load_bf16, 2)))
embed_tiles_f32 = made_kernel("embed_tiles_f32", _embed(_from_tiles(memory.load_f32, 1)))
embed_tiles_i8 = made_kernel("embed_tiles_i8", _embed(_from_tiles(memory.load_i8, 4)))
embed_tiles_i8_rotated = made_kernel("embed_tiles_i8_rotated", _embed(_from_tiles(memory.load_i8, 4, is_rotated=True)))
embed_tiles_e4m3 = made_kernel("embed_tiles_e4m3", _embed(_from_tiles(memory.load_e4m3, 4)))
embed_tiles_e5m2 = made_kernel("embed_tiles_e5m2", _embed(_from_tiles(memory.load_e5m2, 4)))
embed_tiles_i4 = made_kernel("embed_tiles_i4", _embed(_from_groups(_int4_at, 256, memory.load_f16)))
embed_tiles_fp4 = made_kernel("embed_tiles_fp4", _embed(_from_groups(_e2m1_at, 256, memory.load_bf16)))
embed_tiles_i8_groups = made_kernel("embed_tiles_i8_groups", _embed(_from_groups(_int8_at, 512, memory.load_f16)))
embed_tiles_mxfp8 = made_kernel("embed_tiles_mxfp8", _embed(_from_bytes(memory.load_e4m3fn)))
