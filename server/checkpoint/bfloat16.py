"""bfloat16 as numpy knows it: 16-bit patterns in uint16 arrays. Converts between those and float32, nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Bits16 = npt.NDArray[np.uint16]

INFINITY = 0x7F80  # magnitudes from here on are infinity and NaN


def widen(bits: Bits16, out: Float32) -> None:
    """Write the values of `bits` to `out` of the same shape: a bfloat16 is the upper half of a float32."""
    np.left_shift(bits, 16, out=out.view(np.uint32), dtype=np.uint32)


def round_to_bf16(values: Float32, out: Bits16) -> None:
    """Write finite `values` to `out`, rounded to nearest, ties to even; what is beyond range becomes infinity.

    Overwrites `values`.
    """
    bits = values.view(np.uint32)
    # Half a unit less one, plus the lowest bit kept: a tie goes to the even neighbour.
    bits += ((bits >> 16) & 1) + np.uint32(0x7FFF)
    bits >>= 16
    out[...] = bits


def is_finite(bits: Bits16) -> bool:
    """Whether no value is NaN or infinite."""
    return not bool(((bits & 0x7FFF) >= INFINITY).any())
