"""Weights to 8-bit codes with one scale for each output row: symmetric int8, and float8 as the Neuron parts have it.

float8 e4m3 is held to +-240 (its largest finite number where exponent 15 is kept for infinities, as on Neuron), e5m2
to +-57344. Codes below the smallest normal number are zero: tile units flush them, so no kernel depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.config import Quantization
from server.device.kernels.jit import HostFunction
from server.engine.float8 import e4m3fn_table

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


def quantize_rows(rows: Float32, quantization: Quantization) -> QuantizedRows:
    """Codes of `rows` [N, K], which must be finite. A row of zeros has scale 0."""
    codes, scales = np.empty(rows.shape, np.uint8), np.empty(len(rows), np.float32)
    sums = np.zeros(len(rows), np.int32)
    if quantization in ("int8", "int8-weight-only"):
        int8_rows(np.ascontiguousarray(rows), codes.view(np.int8), scales, sums)
    elif quantization == "fp8":
        float8_rows(np.ascontiguousarray(rows), codes, scales, 3, 7, E4M3_MAX)
    else:
        float8_rows(np.ascontiguousarray(rows), codes, scales, 2, 15, E5M2_MAX)
    return QuantizedRows(codes, scales, sums)


def stored_rows(codes: Codes, scales: Float32, quantization: Quantization) -> QuantizedRows:
    """Codes [N, K] and scales [N] that a checkpoint has, as this server computes with them.

    int8 stays as it is. float8 comes as e4m3fn, whose exponent 15 holds 256 to 448 and which has no infinities: a row
    with a code beyond 240 has its values halved and its scale doubled, which is exact but for codes that reach the
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


def _e4m3_codes(factor: float) -> Codes:
    """For each e4m3fn code the nearest code of `factor` times its value; meaningless beyond 240, [256]."""
    values = np.nan_to_num(np.abs(e4m3fn_table()) * np.float32(factor))
    table = float8_table("fp8")[: E4M3_MAX_CODE + 1]
    distances = np.abs(values[:, None] - table[None, :])
    distances[:, 1:8] = np.inf  # subnormal codes
    nearest = E4M3_MAX_CODE - distances[:, ::-1].argmin(axis=1)  # of two the larger
    codes: Codes = (nearest | (np.arange(256) & 0x80)).astype(np.uint8)
    return codes


@HostFunction
def int8_rows(rows: Float32, codes: npt.NDArray[np.int8], scales: Float32, sums: npt.NDArray[np.int32]) -> None:
    for n in range(rows.shape[0]):
        largest = np.float32(0.0)
        for k in range(rows.shape[1]):
            largest = max(largest, abs(rows[n, k]))
        scales[n] = largest / np.float32(127.0)
        inverse = np.float32(127.0) / largest if largest > 0 else np.float32(0.0)
        total = 0
        for k in range(rows.shape[1]):
            code = int(np.rint(rows[n, k] * inverse))
            codes[n, k] = code
            total += code
        sums[n] = total


@HostFunction
def float8_rows(
    rows: Float32, codes: Codes, scales: Float32, mantissa_bits: int, bias: int, largest_code: float
) -> None:
    """Round to nearest, ties to even, by adding half a unit to the bits of a float32."""
    drop = 23 - mantissa_bits
    smallest = np.float32(2.0 ** (1 - bias))
    for n in range(rows.shape[0]):
        largest = np.float32(0.0)
        for k in range(rows.shape[1]):
            largest = max(largest, abs(rows[n, k]))
        scales[n] = largest / np.float32(largest_code)
        inverse = np.float32(largest_code) / largest if largest > 0 else np.float32(0.0)
        for k in range(rows.shape[1]):
            value = rows[n, k] * inverse
            magnitude = min(abs(value), np.float32(largest_code))
            code = (1 << mantissa_bits) if magnitude >= smallest / 2 else 0
            if magnitude >= smallest:
                bits = np.float32(magnitude).view(np.uint32)
                bits += (
                    (np.uint32(1) << np.uint32(drop - 1)) - np.uint32(1) + ((bits >> np.uint32(drop)) & np.uint32(1))
                )
                code = int(bits >> np.uint32(drop)) - ((127 - bias) << mantissa_bits)
            if value < 0:
                code |= 0x80
            codes[n, k] = code


def dequantize_rows(quantized: QuantizedRows, quantization: Quantization) -> Float32:
    """What the codes stand for, [N, K] float32."""
    codes = quantized.codes
    if quantization in ("int8", "int8-weight-only"):
        values = codes.view(np.int8).astype(np.float32)
    else:
        values = float8_table(quantization)[codes]
    return values * quantized.scales[:, None]


def float8_table(quantization: Quantization) -> Float32:
    """The value of each of the 256 codes, [256]; codes below the smallest normal number are zero."""
    mantissa_bits, bias = (3, 7) if quantization == "fp8" else (2, 15)
    code = np.arange(256)
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    value = 2.0 ** (exponent - bias) * (1 + mantissa / (1 << mantissa_bits)) * (exponent > 0)
    return np.where(code & 0x80, -value, value).astype(np.float32)
