"""Codes of GGUF blocks with their scales, of types that have a scale and even steps, or E2M1.

Layout of the blocks: ggml/src/ggml-common.h (block_q4_0, block_q4_1, block_q4_K, block_q5_0, block_q8_0,
block_mxfp4); scales of Q4_K are packed as ggml/src/ggml-quants.c unpacks them (get_scale_min_k4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from ml_dtypes import float4_e2m1fn

from ...config.formats import Quantization
from ..stored import E8M0_BYTES, GroupedCodes, powers_of_two
from .types import Bytes, Float32

GROUP = 32
ZERO, ZERO_OF_FIVE_BITS = 8, 16  # subtracted from codes of 0 to 15, and of 0 to 31
HALF, NUM_GROUPS, SCALE_BYTES = 2, 8, 12  # bytes of a float16; of a block of Q4_K
FIFTH_BITS = 4  # bytes of a block that hold the fifth bits
Codes = npt.NDArray[Any]


def grouped(kind: str, rows: Bytes) -> GroupedCodes:
    """Return the codes of whole rows [rows, bytes] of a type in GROUPED."""
    form = GROUPED[kind]
    codes, scales, offsets = form.unpack(rows.reshape(-1, form.block_bytes))
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
    """Unpack eight groups, whose 6-bit scales and least values multiply two float16 of the block."""
    whole, whole_least = _floats(blocks[:, :HALF]), _floats(blocks[:, HALF : 2 * HALF])
    packed, codes = blocks[:, 2 * HALF : 2 * HALF + SCALE_BYTES], blocks[:, 2 * HALF + SCALE_BYTES :]
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    parts = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=1)
    least = np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=1)
    scales = whole * parts.astype(np.float32)
    return _nibbles(codes.reshape(-1, GROUP)), scales, ZERO * scales - whole_least * least.astype(np.float32)


def _q5_0(blocks: Bytes) -> Unpacked:
    """Unpack the fifth bits of all codes, 32 bits, then the other four."""
    bits = blocks[:, HALF : HALF + FIFTH_BITS]
    fifth = np.unpackbits(bits, axis=1, bitorder="little").view(np.int8)
    fours = _nibbles(blocks[:, HALF + FIFTH_BITS :]) + np.int8(ZERO)
    return (fours | fifth << 4) - np.int8(ZERO_OF_FIVE_BITS), _floats(blocks[:, :HALF]), None


def _q8_0(blocks: Bytes) -> Unpacked:
    return np.ascontiguousarray(blocks[:, HALF:]).view(np.int8), _floats(blocks[:, :HALF]), None


def _mxfp4(blocks: Bytes) -> Unpacked:
    codes = _nibbles(blocks[:, E8M0_BYTES:]) + np.int8(ZERO)
    return codes.view(float4_e2m1fn), powers_of_two(blocks[:, :E8M0_BYTES]), None


class Grouping(NamedTuple):
    """Reader of a type's blocks, and the format that holds its codes."""

    held_by: Quantization
    block_bytes: int
    unpack: Callable[[Bytes], Unpacked]


GROUPED: dict[str, Grouping] = {
    "Q4_0": Grouping("int4", HALF + GROUP // 2, _q4_0),
    "Q4_1": Grouping("int4", 2 * HALF + GROUP // 2, _q4_1),
    "Q4_K": Grouping("int4", 2 * HALF + SCALE_BYTES + NUM_GROUPS * GROUP // 2, _q4_k),
    "Q5_0": Grouping("int8-groups", HALF + FIFTH_BITS + GROUP // 2, _q5_0),
    "Q8_0": Grouping("int8-groups", HALF + GROUP, _q8_0),
    "MXFP4": Grouping("mxfp4", E8M0_BYTES + GROUP // 2, _mxfp4),
}


def _floats(halves: Bytes) -> Float32:
    """Return float16 of two bytes each as float32, [blocks, 1]."""
    return np.ascontiguousarray(halves).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Codes:
    """Return the codes of blocks of bytes: the lower halves of all bytes of a block, then the upper halves."""
    both = np.concatenate([packed & 15, packed >> 4], axis=1)
    return both.view(np.int8) - np.int8(ZERO)
