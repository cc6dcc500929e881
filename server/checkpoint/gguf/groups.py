"""The 4-bit codes of GGUF blocks as they are, for whoever computes with codes: types whose values are even steps.

Layout of the blocks: ggml/src/ggml-common.h (block_q4_0, block_q4_1, block_q4_K); scales of the last are packed as
ggml/src/ggml-quants.c unpacks them (get_scale_min_k4).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from server.checkpoint.gguf.types import Bytes, Float32
from server.checkpoint.stored import GroupedCodes

GROUP = 32
ZERO = 8  # what is taken from codes of 0 to 15
HALF, NUM_GROUPS, SCALE_BYTES = 2, 8, 12  # bytes of a float16; of a block of Q4_K
Codes = npt.NDArray[np.int8]


def grouped(kind: str, rows: Bytes) -> GroupedCodes:
    """The codes of whole rows [rows, bytes] of a type among GROUPED."""
    block_bytes, unpack = GROUPED[kind]
    codes, scales, offsets = unpack(rows.reshape(-1, block_bytes))
    num_rows = len(rows)
    return GroupedCodes(
        codes.reshape(num_rows, -1),
        scales.reshape(num_rows, -1),
        None if offsets is None else offsets.reshape(num_rows, -1),
        GROUP,
    )


Unpacked = tuple[Codes, Float32, Float32 | None]


def _q4_0(blocks: Bytes) -> Unpacked:
    return _nibbles(blocks[:, HALF:]), _floats(blocks[:, :HALF]), None


def _q4_1(blocks: Bytes) -> Unpacked:
    scales, least = _floats(blocks[:, :HALF]), _floats(blocks[:, HALF : 2 * HALF])
    return _nibbles(blocks[:, 2 * HALF :]), scales, least + ZERO * scales


def _q4_k(blocks: Bytes) -> Unpacked:
    """Eight groups with scales and least values of 6 bits, which are parts of two float16 of the block."""
    whole, whole_least = _floats(blocks[:, :HALF]), _floats(blocks[:, HALF : 2 * HALF])
    packed, codes = blocks[:, 2 * HALF : 2 * HALF + SCALE_BYTES], blocks[:, 2 * HALF + SCALE_BYTES :]
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    parts = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    least = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    scales = whole * parts.astype(np.float32)
    return _nibbles(codes.reshape(-1, GROUP)), scales, ZERO * scales - whole_least * least.astype(np.float32)


GROUPED: dict[str, tuple[int, Callable[[Bytes], Unpacked]]] = {
    "Q4_0": (HALF + GROUP // 2, _q4_0),
    "Q4_1": (2 * HALF + GROUP // 2, _q4_1),
    "Q4_K": (2 * HALF + SCALE_BYTES + NUM_GROUPS * GROUP // 2, _q4_k),
}


def _floats(halves: Bytes) -> Float32:
    """[blocks, 1] of two bytes each."""
    return np.ascontiguousarray(halves).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Codes:
    """Codes of pieces of bytes: the lower halves of all bytes of a piece, then the upper ones."""
    both = np.concatenate([packed & 15, packed >> 4], axis=1)
    return both.view(np.int8) - np.int8(ZERO)
