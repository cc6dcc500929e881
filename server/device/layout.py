"""Layout of matrices in a core's memory. server/kernels/matmul/packing.py packs them, once, at loading or compiling.

Weights [N, K] become [N/16][K/k_tile] tiles, in the order in which the matmul kernels stream them. As 32-bit words (one
float32, or two bfloat16, four 8-bit or eight 4-bit neighbours in k) all formats have one layout, [N/16][K words][16 n],
except formats that are multiplied group by group: their column tiles lie in pairs (matmul/group_lanes.py).
"""

from __future__ import annotations

from ..config.formats import WeightFormat, WeightGroups
from .hbm import ALIGNMENT

FLOAT32_BYTES, BFLOAT16_BYTES, INT16_BYTES = 4, 2, 2
N_TILE = 16  # columns of one tile
LORA_RANKS = 4  # rows of an adapter's A that are multiplied at a time
LORA_PART_BYTES = 64  # one PartRecord of server/kernels/lora.py
GROUP_ROWS = 32  # a block of the tile unit; the rows of one expert begin at a multiple of it
GROUP_MULTIPLE = 32  # elements of k in the smallest group
GROUP_SCALE_BYTES = 2  # float16; bfloat16 in microscaling formats
K_MULTIPLE = 64  # k is padded to whole tiles of 8-bit weights, whatever the format
K_TILES: dict[WeightFormat, int] = {  # elements of k in one tile of weights
    "float32": 32,
    "bfloat16": 32,
    "int8": 64,
    "int8-rotated": 64,
    "int8-weight-only": 64,
    "fp8": 64,
    "fp8_e5m2": 64,
    "int8-groups": 64,
    "mxfp8": 64,
    "int4": 64,
    "mxfp4": 64,
}
WEIGHT_BYTES: dict[WeightFormat, float] = {
    "float32": 4,
    "bfloat16": 2,
    "int8": 1,
    "int8-rotated": 1,
    "int8-weight-only": 1,
    "fp8": 1,
    "fp8_e5m2": 1,
    "int8-groups": 1,
    "mxfp8": 1,
    "int4": 0.5,
    "mxfp4": 0.5,
}
GROUPED: tuple[WeightFormat, ...] = ("int8-groups", "mxfp8", "int4", "mxfp4")


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def is_scaled(weights: WeightFormat) -> bool:
    """Return whether the format has a scale for each output column."""
    return WEIGHT_BYTES[weights] == 1 and not is_grouped(weights)


def is_grouped(weights: WeightFormat) -> bool:
    """Return whether the format has a scale for each group of k of each output column."""
    return weights in GROUPED


def group_shift(weights: WeightFormat, groups: WeightGroups) -> int:
    """Return s so that GROUP_MULTIPLE << s neighbours in k share a scale; 0 for formats without groups."""
    return 0 if weights != "int4" else (groups.size // GROUP_MULTIPLE).bit_length() - 1


def num_groups(weights: WeightFormat, groups: WeightGroups, k: int) -> int:
    """Return the number of groups of k; the last group may be short."""
    return -(-k // (GROUP_MULTIPLE << group_shift(weights, groups)))


def tile_bytes(weights: WeightFormat, n: int, k: int) -> int:
    """Return the bytes of the tiles of a matrix [n, k], both padded, without scales."""
    return int(n * k * WEIGHT_BYTES[weights])


def scale_bytes(weights: WeightFormat, groups: WeightGroups, n: int, k: int) -> tuple[int, int]:
    """Return the bytes beside the tiles of a matrix [n, k]: of scales, and of sums (8 bits) or shifts (int4)."""
    if is_scaled(weights):
        return n * FLOAT32_BYTES, n * FLOAT32_BYTES
    if not is_grouped(weights):
        return 0, 0
    scales = n * num_groups(weights, groups, k) * GROUP_SCALE_BYTES
    return scales, 0 if weights != "int4" or groups.is_symmetric else scales


def vector_bytes(num_values: int) -> int:
    """Return the bytes of `num_values` float32 values in whole cache lines, as a core allocates them."""
    return round_up(num_values * FLOAT32_BYTES, ALIGNMENT)
