"""How matrices lie in a core's memory: packed once, when a checkpoint is loaded or compiled.

Weights [N, K] become [N/16][K/k_tile] tiles in the order the matmul kernels stream them. Seen as 32-bit words (one
float32, or two bfloat16 or four 8-bit neighbours in k) all formats have one layout: [N/16][K words][16 n].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from server.config import WeightFormat
from server.device.kernels.jit import HostFunction

N_TILE = 16  # columns of one tile
K_MULTIPLE = 64  # k is padded to whole tiles of 8-bit weights, whatever the format
K_TILES: dict[WeightFormat, int] = {  # elements of k in one tile of weights
    "float32": 32,
    "bfloat16": 32,
    "int8": 64,
    "int8-rotated": 64,
    "int8-weight-only": 64,
    "fp8": 64,
    "fp8_e5m2": 64,
}
WEIGHT_BYTES: dict[WeightFormat, int] = {
    "float32": 4,
    "bfloat16": 2,
    "int8": 1,
    "int8-rotated": 1,
    "int8-weight-only": 1,
    "fp8": 1,
    "fp8_e5m2": 1,
}


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


@HostFunction
def pack(rows: npt.NDArray[np.uint32], tiles: npt.NDArray[np.uint32]) -> None:
    for n in range(rows.shape[0]):
        tile = tiles[n // 16]
        for k in range(rows.shape[1]):
            tile[k, n % 16] = rows[n, k]


def is_scaled(weights: WeightFormat) -> bool:
    """Whether the format has a scale for each output column."""
    return WEIGHT_BYTES[weights] == 1


def pack_weights(rows: npt.NDArray[Any], into: npt.NDArray[np.uint8]) -> None:
    """`rows` [N, K] (float32, bfloat16 bits or 8-bit codes; N a multiple of 16, K of 64) to tiles in `into`."""
    words = np.ascontiguousarray(rows).view(np.uint32)
    pack(words, into.view(np.uint32).reshape(rows.shape[0] // N_TILE, words.shape[1], N_TILE))


def interleave(gate: npt.NDArray[Any], up: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[N, K] and [N, K] to [2N, K]: 16 rows of gate, 16 of up, and so on, as SwiGLU reads them."""
    n, k = gate.shape
    both = np.stack([gate.reshape(n // N_TILE, N_TILE, k), up.reshape(n // N_TILE, N_TILE, k)], axis=1)
    return both.reshape(2 * n, k)
