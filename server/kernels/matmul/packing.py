"""Packs rows of weights into the tiles of server/device/layout.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...config.formats import WeightFormat
from ...device.layout import N_TILE
from ..isa.jit import HostFunction
from .groups import GroupedRows

Bytes = npt.NDArray[np.uint8]


def pack_weights(rows: npt.NDArray[Any], into: Bytes) -> None:
    """Pack `rows` [N, K] (float32, bfloat16 bits or 8-bit codes; N a multiple of 16, K of 64) to tiles in `into`."""
    words = np.ascontiguousarray(rows).view(np.uint32)
    words = words.reshape(rows.shape[0] // N_TILE, N_TILE, -1)
    tiles = into.view(np.uint32).reshape(words.shape[0], words.shape[2], N_TILE)
    for tile, its_rows in zip(tiles, words, strict=True):  # one at a time, to fit a near cache
        tile[:] = its_rows.T


@HostFunction
def pack_halves(codes: Bytes, tiles: Bytes) -> None:
    """Pack codes [N, K] to tiles [pairs][K/32][width][4][16 n][4]; N is `width` * 16 for each pair."""
    width = tiles.shape[2]
    for n in range(codes.shape[0]):
        pair, tile = tiles[n // (16 * width)], n // 16 % width
        for k in range(codes.shape[1] // 8):
            for i in range(4):
                pair[k // 4, tile, k % 4, n % 16, i] = codes[n, 8 * k + i] | codes[n, 8 * k + 4 + i] << 4


def _pairs(n: int) -> tuple[tuple[slice, int], ...]:
    """Return rows and the number of their tiles side by side: first the pairs, then a last single tile."""
    paired = n // (2 * N_TILE) * 2 * N_TILE
    return (slice(0, paired), 2), (slice(paired, n), 1)


@HostFunction
def pack_bytes(codes: Bytes, tiles: Bytes) -> None:
    """Pack codes [N, K] to tiles [pairs][K/32][width][8][16 n][4]; N is `width` * 16 for each pair."""
    width = tiles.shape[2]
    for n in range(codes.shape[0]):
        pair, tile = tiles[n // (16 * width)], n // 16 % width
        for k in range(codes.shape[1]):
            pair[k // 32, tile, k % 32 // 4, n % 16, k % 4] = codes[n, k]


def _pack_nibbles(codes: Bytes, into: Bytes) -> None:
    """Pack 4-bit `codes` [N, K], one in a byte, to two in a byte (isa/nibbles.py, group_lanes.py)."""
    n, k = codes.shape
    for rows, width in _pairs(n):
        part = into[rows.start * k // 2 : rows.stop * k // 2].reshape(-1, k // 32, width, 4, N_TILE, 4)
        pack_halves(np.ascontiguousarray(codes[rows]), part)


def _pack_bytes(codes: Bytes, into: Bytes) -> None:
    """Pack 8-bit `codes` [N, K] to pairs of tiles."""
    n, k = codes.shape
    for rows, width in _pairs(n):
        part = into[rows.start * k : rows.stop * k].reshape(-1, k // 32, width, 8, N_TILE, 4)
        pack_bytes(np.ascontiguousarray(codes[rows]), part)


def _pack_values(values: npt.NDArray[np.float32], into: Bytes, dtype: npt.DTypeLike) -> None:
    """Pack the values of groups [N, groups] to [N/32][groups][2][16 n] of `dtype`."""
    n, groups = values.shape
    for rows, width in _pairs(n):
        part = into.view(dtype)[rows.start * groups : rows.stop * groups].reshape(-1, groups, width, N_TILE)
        part[:] = values[rows].reshape(-1, width, N_TILE, groups).transpose(0, 3, 1, 2)


class GroupMemory(NamedTuple):
    """Memory of a matrix of a format with groups, or of a block of its rows."""

    tiles: Bytes
    scales: Bytes
    shifts: Bytes | None


def pack_grouped(rows: GroupedRows, weights: WeightFormat, into: GroupMemory) -> None:
    """Pack tiles, scales and shifts as kernels read them; scales of MXFP4 and all shifts are multiplied by a constant.

    MXFP8 is converted by weight_codes.py before it is multiplied; group_lanes.py reads the others.
    """
    if weights == "mxfp8":
        pack_weights(rows.codes, into.tiles)
        n, groups = rows.scales.shape
        by_tile = rows.scales.reshape(n // N_TILE, N_TILE, groups).transpose(0, 2, 1)
        into.scales.view(ml_dtypes.bfloat16).reshape(by_tile.shape)[:] = by_tile
        return
    if weights == "int8-groups":
        _pack_bytes(rows.codes, into.tiles)
    else:
        _pack_nibbles(rows.codes, into.tiles)
    if weights == "mxfp4":  # codes are multiplied as twice their value
        _pack_values(rows.scales * np.float32(0.5), into.scales, ml_dtypes.bfloat16)
        return
    _pack_values(rows.scales, into.scales, np.float16)
    if into.shifts is not None:  # multiplied by -8 times the sum of the activations
        shifts = np.zeros_like(rows.scales) if rows.shifts is None else rows.shifts
        _pack_values(shifts / np.float32(-8.0), into.shifts, np.float16)


def interleave(gate: npt.NDArray[Any], up: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Interleave [N, K] and [N, K] to [2N, K]: 16 rows of gate, 16 of up, and so on, as gated products read them."""
    n, k = gate.shape
    both = np.stack([gate.reshape(n // N_TILE, N_TILE, k), up.reshape(n // N_TILE, N_TILE, k)], axis=1)
    return both.reshape(2 * n, k)
