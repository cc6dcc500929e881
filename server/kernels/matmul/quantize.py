"""Weights to 8-bit codes with one scale for each output row: symmetric int8, and float8 in the Neuron variant.

float8 e4m3 is held to +-240 (its largest finite number if exponent 15 is reserved for infinities, as on Neuron), e5m2
to +-57344. Codes below the smallest normal number are zero: tile units flush them, so no kernel depends on them. The
steps of float8 are relative, so a row's scale only decides where its values fall between powers of two; of several
scales the one with the least squared error is taken.

int8-rotated is int8 of rows that rotation.py has rotated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...config.formats import WeightFormat
from ..isa.jit import HostFunction, inline
from ..rotation import rotate_rows, rotate_rows_back

ROUNDER = np.float32(1.5 * 2**23)  # adding and subtracting it rounds to a whole number, ties to even
FLOAT8_SCALES, FLOAT8_SAMPLE = 8, 256  # scales that are tried for a row, on that many of its values

Float32 = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]

E4M3_MAX = 240.0
E4M3_MAX_CODE = 0x77  # of 240
E5M2_MAX = 57344.0


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """codes [N, K] (int8 or float8 bits, as bytes); row n stands for codes[n] * scales[n]."""

    codes: Codes
    scales: Float32  # [N]
    sums: npt.NDArray[np.int32]  # [N] sum of the codes: int8 only, else zero


def quantize_rows(rows: Float32, quantization: WeightFormat) -> QuantizedRows:
    """Return the codes of `rows` [N, K], which must be finite. A row of zeros has scale 0."""
    codes, scales = np.empty(rows.shape, np.uint8), np.empty(len(rows), np.float32)
    sums = np.zeros(len(rows), np.int32)
    if quantization == "int8-rotated":
        rows = rotated(rows)
    if quantization.startswith("int8"):
        int8_rows(np.ascontiguousarray(rows), codes.view(np.int8), scales, sums)
    elif quantization == "fp8":
        float8_rows(np.ascontiguousarray(rows), codes, scales, 3, 7, E4M3_MAX)
    else:
        float8_rows(np.ascontiguousarray(rows), codes, scales, 2, 15, E5M2_MAX)
    return QuantizedRows(codes, scales, sums)


def stored_rows(codes: Codes, scales: Float32, quantization: WeightFormat) -> QuantizedRows:
    """Convert codes [N, K] and scales [N] of a checkpoint to those that kernels compute with.

    int8 is unchanged. float8 comes as e4m3fn, whose exponent 15 holds 256 to 448 and which has no infinities: a row
    with a code beyond 240 has its values halved and its scale doubled. That is exact except for codes that reach the
    smallest normal number; those, and subnormal codes of any row, are rounded to it or to zero.
    """
    sums = np.zeros(len(codes), np.int32)
    if quantization != "fp8":
        codes.view(np.int8).sum(axis=1, dtype=np.int32, out=sums)
        return QuantizedRows(codes, scales, sums)
    is_beyond = ((codes & 0x7F) > E4M3_MAX_CODE).any(axis=1)
    whole, half = _e4m3_codes(1.0), _e4m3_codes(0.5)
    rounded = np.empty_like(codes)
    rounded[~is_beyond], rounded[is_beyond] = whole[codes[~is_beyond]], half[codes[is_beyond]]
    return QuantizedRows(rounded, np.where(is_beyond, 2 * scales, scales).astype(np.float32), sums)


@cache
def _e4m3_codes(factor: float) -> Codes:
    """Return for each e4m3fn code the nearest code of `factor` times its value, [256]; meaningless beyond 240."""
    stored = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    values = np.nan_to_num(np.abs(stored) * np.float32(factor))
    table = float8_table("fp8")[: E4M3_MAX_CODE + 1]
    distances = np.abs(values[:, None] - table[None, :])
    distances[:, 1:8] = np.inf  # subnormal codes
    nearest = E4M3_MAX_CODE - distances[:, ::-1].argmin(axis=1)  # the larger of two
    codes: Codes = (nearest | (np.arange(256) & 0x80)).astype(np.uint8)
    return codes


@HostFunction
def int8_rows(rows: Float32, codes: npt.NDArray[np.int8], scales: Float32, sums: npt.NDArray[np.int32]) -> None:
    bits = rows.view(np.uint32)
    for n in range(rows.shape[0]):
        largest_bits = np.uint32(0)  # magnitudes are ordered as integers too, and this loop is vectorized
        for k in range(rows.shape[1]):
            largest_bits = np.uint32(max(largest_bits, bits[n, k] & np.uint32(0x7FFFFFFF)))
        largest = np.uint32(largest_bits).view(np.float32)
        scales[n] = largest / np.float32(127.0)
        inverse = np.float32(127.0) / largest if largest > 0 else np.float32(0.0)
        total = np.int32(0)
        for k in range(rows.shape[1]):
            code = np.int32((rows[n, k] * inverse + ROUNDER) - ROUNDER)
            codes[n, k] = code
            total = np.int32(total + code)
        sums[n] = total


@inline
def _float8_rounded(magnitude, smallest, drop):  # type: ignore[no-untyped-def]
    """Round to the nearest value with 23 - drop bits of mantissa, ties to even, by adding half a unit to the bits."""
    if magnitude < smallest:
        return smallest if magnitude >= smallest / np.float32(2.0) else np.float32(0.0)
    bits = np.float32(magnitude).view(np.uint32)
    bits += (np.uint32(1) << np.uint32(drop - 1)) - np.uint32(1) + ((bits >> np.uint32(drop)) & np.uint32(1))
    return np.uint32(bits >> np.uint32(drop) << np.uint32(drop)).view(np.float32)


@inline
def _float8_scale(row, largest, smallest, drop, largest_code):  # type: ignore[no-untyped-def]
    """Return the scale with the least squared error, of those that map `largest` to half to all of the largest code."""
    step = max(1, row.size // FLOAT8_SAMPLE)
    best, least = np.float32(0.0), np.inf
    for i in range(FLOAT8_SCALES):
        scale = np.float32(largest / largest_code * 2.0 ** (i / FLOAT8_SCALES))
        total = 0.0
        for k in range(0, row.size, step):
            magnitude = abs(row[k])
            error = _float8_rounded(min(magnitude / scale, largest_code), smallest, drop) * scale - magnitude
            total += error * error
        if total < least:
            best, least = scale, total
    return best


@HostFunction
def float8_rows(
    rows: Float32, codes: Codes, scales: Float32, mantissa_bits: int, bias: int, largest_code: float
) -> None:
    drop = 23 - mantissa_bits
    smallest, limit = np.float32(2.0 ** (1 - bias)), np.float32(largest_code)
    for n in range(rows.shape[0]):
        largest = np.float32(0.0)
        for k in range(rows.shape[1]):
            largest = max(largest, abs(rows[n, k]))
        scales[n] = inverse = np.float32(0.0)
        if largest > 0:
            scales[n] = _float8_scale(rows[n], largest, smallest, drop, limit)
            inverse = np.float32(1.0) / scales[n]
        for k in range(rows.shape[1]):
            value = rows[n, k] * inverse
            rounded = _float8_rounded(min(abs(value), limit), smallest, drop)
            code = 0
            if rounded > 0:
                code = int(np.float32(rounded).view(np.uint32) >> np.uint32(drop)) - ((127 - bias) << mantissa_bits)
            codes[n, k] = code | 0x80 if value < 0 else code


def rotated(rows: Float32) -> Float32:
    """Return the rows rotated, [N, K] with K a multiple of 64."""
    source, target = np.ascontiguousarray(rows, np.float32), np.empty(rows.shape, np.float32)
    rotate_rows(source.ctypes.data, target.ctypes.data, *rows.shape)
    return target


def dequantize_rows(quantized: QuantizedRows, quantization: WeightFormat) -> Float32:
    """Return the values of the codes, [N, K] float32."""
    codes = quantized.codes
    if quantization.startswith("int8"):
        values = codes.view(np.int8).astype(np.float32)
    else:
        values = float8_table(quantization)[codes]
    values *= quantized.scales[:, None]
    if quantization == "int8-rotated":
        rotate_rows_back(values.ctypes.data, *values.shape)
    return values


def float8_table(quantization: WeightFormat) -> Float32:
    """Return the value of each of the 256 codes, [256]; codes below the smallest normal number are zero."""
    dtype, mantissa_bits = (ml_dtypes.float8_e4m3, 3) if quantization == "fp8" else (ml_dtypes.float8_e5m2, 2)
    codes = np.arange(256, dtype=np.uint8)
    values: Float32 = codes.view(dtype).astype(np.float32)
    values[(codes & 0x7F) < 1 << mantissa_bits] *= 0  # the sign stays
    return values
