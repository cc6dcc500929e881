"""Packs rows of weights into the tiles of server/device/layout.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from server.device.layout import N_TILE
from server.kernels.isa.jit import HostFunction


@HostFunction
def pack(rows: npt.NDArray[np.uint32], tiles: npt.NDArray[np.uint32]) -> None:
    for n in range(rows.shape[0]):
        tile = tiles[n // 16]
        for k in range(rows.shape[1]):
            tile[k, n % 16] = rows[n, k]


def pack_weights(rows: npt.NDArray[Any], into: npt.NDArray[np.uint8]) -> None:
    """`rows` [N, K] (float32, bfloat16 bits or 8-bit codes; N a multiple of 16, K of 64) to tiles in `into`."""
    words = np.ascontiguousarray(rows).view(np.uint32)
    pack(words, into.view(np.uint32).reshape(rows.shape[0] // N_TILE, words.shape[1], N_TILE))


def interleave(gate: npt.NDArray[Any], up: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[N, K] and [N, K] to [2N, K]: 16 rows of gate, 16 of up, and so on, as gated products read them."""
    n, k = gate.shape
    both = np.stack([gate.reshape(n // N_TILE, N_TILE, k), up.reshape(n // N_TILE, N_TILE, k)], axis=1)
    return both.reshape(2 * n, k)
