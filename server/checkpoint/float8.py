"""float8 e4m3fn, as checkpoints store it: codes in uint8 arrays, and what they stand for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def e4m3fn_table() -> npt.NDArray[np.float32]:
    """The value of each of the 256 codes of OCP float8 e4m3 (OCP 8-bit floating point specification), [256]."""
    code = np.arange(256)
    exponent, mantissa = (code & 0x7F) >> 3, (code & 7) / 8
    value = np.where(exponent > 0, 2.0 ** (exponent - 7) * (1 + mantissa), 2.0**-6 * mantissa)
    value[(code & 0x7F) == 0x7F] = np.nan
    return np.where(code & 0x80, -value, value).astype(np.float32)
