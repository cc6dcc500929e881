"""Layout of matrices in a core's memory: packed once, when a checkpoint is loaded or compiled.

Weights [N, K] become [N/16][K/k_tile] tiles in the order the matmul kernels stream them. Seen as 32-bit words (one
float32, or two bfloat16 or four 8-bit neighbours in k) all formats have one layout: [N/16][K words][16 n].
server/kernels/matmul/packing.py packs.
"""

from __future__ import annotations

from server.config import WeightFormat
from server.device.hbm import ALIGNMENT

FLOAT32_BYTES, BFLOAT16_BYTES = 4, 2
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


def is_scaled(weights: WeightFormat) -> bool:
    """True when the format has a scale for each output column."""
    return WEIGHT_BYTES[weights] == 1


def vector_bytes(num_values: int) -> int:
    """Bytes of `num_values` float32 values, as a core hands them out: in whole cache lines."""
    return round_up(num_values * FLOAT32_BYTES, ALIGNMENT)
