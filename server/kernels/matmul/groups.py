"""Weights to codes with a scale for each group of neighbours in k, and back.

int4: a code 0 to 15 stands for scale * (code - 8) + shift; symmetric groups have no shift. Several scales are tried,
each refined to the least squares of its codes, and the one with the least squared error is taken, as ggml does
(https://github.com/ggml-org/llama.cpp, ggml-quants.c). Scales and shifts are float16, and codes are chosen for the
rounded ones.

int8-groups: a code 0 to 255 stands for scale * (code - 128), in groups of 32 neighbours, as in ggml's Q8_0.

MXFP4 and MXFP8: groups of 32 neighbours share a power of two as scale. An E2M1 code stands for 0, 0.5, 1, 1.5, 2, 3, 4
or 6 with a sign, an E4M3 code for a number up to 448 (Open Compute Project, Microscaling Formats specification 1.0, 5.1
to 6.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...config.formats import WeightFormat, WeightGroups
from ...device.layout import N_TILE
from ..isa import simd
from ..isa.jit import HostFunction, inline

Float32 = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]

ONE_SIZE = 32  # group size of all formats except int4
INT8_ZERO, INT8_LARGEST = 128, 127
FLOAT16_MAX = 65504.0

# Codes for the largest magnitude; beyond 7 it is clipped. Negative ones invert the scale's sign, since -8 has no
# counterpart.
SYMMETRIC = np.array([7.0, 7.4, 8.0, 6.6, 8.5, -7.4, -8.0, -8.5, -6.6], np.float32)
RANGES = np.array([15.0, 15.6, 16.3, 17.1, 14.4], np.float32)  # steps between the least and the largest value


@dataclass(frozen=True, slots=True)
class _Microscaling:
    """Elements of a microscaling format."""

    element: npt.DTypeLike
    largest: float
    largest_exponent: int
    bits: int


MICROSCALING: dict[WeightFormat, _Microscaling] = {
    "mxfp4": _Microscaling(ml_dtypes.float4_e2m1fn, 6.0, 2, 4),
    "mxfp8": _Microscaling(ml_dtypes.float8_e4m3fn, 448.0, 8, 8),
}


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """codes [N, K], one in a byte, with `scales` and, for some formats, `shifts`."""

    codes: Codes
    scales: Float32  # [N, groups]
    shifts: Float32 | None = None  # [N, groups]


def quantize_groups(rows: Float32, weights: WeightFormat, groups: WeightGroups) -> GroupedRows:
    """Return the codes of `rows` [N, K], finite, N a multiple of 16 and K of 32; the last group may be shorter."""
    if weights in MICROSCALING:
        return _microscaling_groups(rows, MICROSCALING[weights])
    if weights == "int8-groups":
        return _int8_groups(rows)
    (n, k), size = rows.shape, groups.size
    lanes = np.ascontiguousarray(rows.reshape(n // N_TILE, N_TILE, k).transpose(0, 2, 1))
    scales = np.empty((n // N_TILE, -(-k // size), N_TILE), np.float32)
    shifts, codes = np.zeros_like(scales), np.empty(lanes.shape, np.uint8)
    if groups.is_symmetric:
        symmetric_scales(lanes, size, SYMMETRIC, scales)
    else:
        shifted_scales(lanes, size, RANGES, scales, shifts)
    scales, shifts = as_float16(scales), as_float16(shifts)
    nearest_codes(lanes, size, scales, shifts, codes)
    return GroupedRows(_by_row(codes), _by_row(scales), None if groups.is_symmetric else _by_row(shifts))


def _by_row(tiles: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Reorder [N/16][any][16] to [N, any]."""
    return np.ascontiguousarray(tiles.transpose(0, 2, 1)).reshape(-1, tiles.shape[1])


def as_float16(values: Float32) -> Float32:
    """Return the nearest float16 values."""
    return np.clip(values, -FLOAT16_MAX, FLOAT16_MAX).astype(np.float16).astype(np.float32)


def dequantize_groups(rows: GroupedRows, weights: WeightFormat) -> Float32:
    """Return the values of the codes, [N, K] float32."""
    k, count = rows.codes.shape[1], rows.scales.shape[1]
    size = next(s for s in (32, 64, 128) if -(-k // s) == count) if weights == "int4" else ONE_SIZE
    at = np.arange(k) // size
    if weights in MICROSCALING:
        values = rows.codes.view(MICROSCALING[weights].element).astype(np.float32)
    else:
        values = rows.codes.astype(np.float32) - zero_code(weights)
    values *= rows.scales[:, at]
    if rows.shifts is not None:
        values += rows.shifts[:, at]
    return values


def zero_code(weights: WeightFormat) -> int:
    """Return the code that stands for 0."""
    return {"int4": 8, "int8-groups": INT8_ZERO}.get(weights, 0)


def _int8_groups(rows: Float32) -> GroupedRows:
    """Quantize with scales that bring the largest magnitude to 127."""
    n, k = rows.shape
    grouped = rows.reshape(n, k // ONE_SIZE, ONE_SIZE)
    scales = as_float16(np.abs(grouped).max(2) / INT8_LARGEST)
    steps = np.rint(grouped * _inverse(scales)[:, :, None])
    codes = np.clip(steps, -INT8_LARGEST, INT8_LARGEST) + INT8_ZERO
    return GroupedRows(codes.astype(np.uint8).reshape(n, k), scales)


def _microscaling_groups(rows: Float32, form: _Microscaling) -> GroupedRows:
    """Quantize by the specification.

    A scale is the largest magnitude's exponent minus that of the largest code; larger values are clipped.
    """
    n, k = rows.shape
    grouped = rows.reshape(n, k // ONE_SIZE, ONE_SIZE)
    largest = np.abs(grouped).max(2)
    exponents = np.frexp(largest)[1] - 1 - form.largest_exponent
    scales = np.where(largest > 0, np.exp2(np.clip(exponents, -120, 120)), 0).astype(np.float32)
    scaled = np.clip(grouped * _inverse(scales)[:, :, None], -form.largest, form.largest)
    codes = scaled.astype(form.element).view(np.uint8) & np.uint8((1 << form.bits) - 1)
    return GroupedRows(codes.reshape(n, k), scales)


def _inverse(scales: Float32) -> Float32:
    """Return 1 / scales, and 0 for scales of 0."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)


@inline
def _rounded(values, by, low, high):  # type: ignore[no-untyped-def]
    return simd.clamp(simd.rint(simd.mul(values, by)), low, high)


@HostFunction
def symmetric_scales(lanes: Float32, size: int, tops: Float32, scales: Float32) -> None:
    """Fit the scales of symmetric groups; `tops` are the codes tried for the largest magnitude.

    `lanes` is [N/16][K][16], `scales` [N/16][groups][16].
    """
    num_k, num_groups = lanes.shape[1], scales.shape[1]
    low, high = simd.splat(np.float32(-8.0)), simd.splat(np.float32(7.0))
    one, tiny = simd.splat(np.float32(1.0)), simd.splat(np.float32(1e-30))
    for i in range(lanes.shape[0] * num_groups):
        tile, group = i // num_groups, i % num_groups
        begin = lanes.ctypes.data + (tile * num_k + group * size) * 64
        end = begin + min(size, num_k - group * size) * 64
        largest = tiny
        for at in range(begin, end, 64):
            largest = simd.larger(simd.absolute(simd.load(at)), largest)
        best = gain = simd.splat(np.float32(0.0))
        for t in range(len(tops)):
            by = simd.div(simd.splat(tops[t]), largest)
            products = squares = simd.splat(np.float32(0.0))
            for at in range(begin, end, 64):
                value = simd.load(at)
                code = _rounded(value, by, low, high)
                products, squares = simd.fma(value, code, products), simd.fma(code, code, squares)
            scale = simd.div(products, simd.larger(squares, one))
            this = simd.mul(scale, products)  # sum of squares of the values, minus the error
            better = simd.where_at_least(this, gain, one)
            best = simd.fma(better, simd.sub(scale, best), best)
            gain = simd.larger(this, gain)
        simd.store(scales.ctypes.data + i * 64, best)


@HostFunction
def shifted_scales(lanes: Float32, size: int, ranges: Float32, scales: Float32, shifts: Float32) -> None:
    """Fit scales and shifts; `ranges` are the numbers of steps tried between the least value and the largest."""
    num_k, num_groups = lanes.shape[1], scales.shape[1]
    low, high = simd.splat(np.float32(-8.0)), simd.splat(np.float32(7.0))
    zero, half = simd.splat(np.float32(0.0)), simd.splat(np.float32(0.5))
    one, tiny = simd.splat(np.float32(1.0)), simd.splat(np.float32(1e-30))
    for i in range(lanes.shape[0] * num_groups):
        tile, group = i // num_groups, i % num_groups
        begin = lanes.ctypes.data + (tile * num_k + group * size) * 64
        count = min(size, num_k - group * size)
        end, inverse = begin + count * 64, simd.splat(np.float32(1.0 / count))
        top = bottom = simd.load(begin)
        total = zero
        for at in range(begin, end, 64):
            value = simd.load(at)
            top, bottom = (
                simd.larger(value, top),
                simd.sub(zero, simd.larger(simd.sub(zero, value), simd.sub(zero, bottom))),
            )
            total = simd.add(total, value)
        width, mean = simd.larger(simd.sub(top, bottom), tiny), simd.mul(total, inverse)
        middle = simd.mul(simd.add(top, bottom), half)
        best, best_shift, gain = zero, mean, zero
        for t in range(len(ranges)):
            by = simd.div(simd.splat(ranges[t]), width)
            offset = simd.fma(middle, by, half)  # codes are -8 to 7 around -0.5
            products = squares = codes = zero
            for at in range(begin, end, 64):
                value = simd.load(at)
                code = simd.clamp(simd.rint(simd.sub(simd.mul(value, by), offset)), low, high)
                off = simd.sub(value, mean)
                products, squares = simd.fma(off, code, products), simd.fma(code, code, squares)
                codes = simd.add(codes, code)
            centre = simd.mul(codes, inverse)
            spread = simd.larger(simd.sub(squares, simd.mul(codes, centre)), tiny)
            scale = simd.div(products, spread)
            this = simd.mul(scale, products)
            better = simd.where_at_least(this, gain, one)
            best = simd.fma(better, simd.sub(scale, best), best)
            shift = simd.sub(mean, simd.mul(scale, centre))
            best_shift = simd.fma(better, simd.sub(shift, best_shift), best_shift)
            gain = simd.larger(this, gain)
        simd.store(scales.ctypes.data + i * 64, best)
        simd.store(shifts.ctypes.data + i * 64, best_shift)


@HostFunction
def nearest_codes(lanes: Float32, size: int, scales: Float32, shifts: Float32, codes: Codes) -> None:
    """Choose codes 0 to 15 of values for these scales and shifts; a scale of 0 gives code 8."""
    num_k, num_groups = lanes.shape[1], scales.shape[1]
    low, high = simd.splat(np.float32(0.0)), simd.splat(np.float32(15.0))
    eight, tiny = simd.splat(np.float32(8.0)), simd.splat(np.float32(1e-30))
    for i in range(lanes.shape[0] * num_k):
        at = (i // num_k * num_groups + i % num_k // size) * 64
        scale, shift = simd.load(scales.ctypes.data + at), simd.load(shifts.ctypes.data + at)
        inverse = simd.where_at_least(simd.absolute(scale), tiny, simd.div(simd.splat(np.float32(1.0)), scale))
        code = simd.rint(simd.mul(simd.sub(simd.load(lanes.ctypes.data + i * 64), shift), inverse))
        simd.store_i8(codes.ctypes.data + i * 16, simd.clamp(simd.add(code, eight), low, high))
