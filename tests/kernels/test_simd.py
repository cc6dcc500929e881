"""Lanes against numpy: values, rounding, and the order of reductions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numba import njit

from neuronserve.server.kernels.isa import simd


@njit
def _exp(source: int, target: int, count: int) -> None:
    for i in range(0, count, 16):
        simd.store(target + i * 4, simd.exp(simd.load(source + i * 4)))


@njit
def _to_bf16(source: int, target: int, count: int) -> None:
    for i in range(0, count, 16):
        simd.store_bf16(target + i * 2, simd.load(source + i * 4))


@njit
def _reduce(source: int) -> tuple[float, float, float]:
    value = simd.load(source)
    return simd.sum_lanes(value), simd.max_lanes(value), simd.first_lane(value)


@njit
def _between(source: int, target: int, begin: int, end: int) -> None:
    simd.store(target, simd.select_range(begin, end, simd.load(source), simd.splat(-1.0)))


def test_exp_is_within_two_units_in_the_last_place() -> None:
    x = np.linspace(-86.9, 87.9, 160_000, dtype=np.float32)
    y = np.zeros_like(x)
    _exp(x.ctypes.data, y.ctypes.data, x.size)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(y - exact) / exact) <= 2 * 2.0**-24 * 1.01


def test_exp_of_zero_is_one_and_extremes_stay_finite() -> None:
    x = np.array([0.0, -0.0, -1e30, 1e30, -np.inf, np.inf] + [0.0] * 10, np.float32)
    y = np.zeros_like(x)
    _exp(x.ctypes.data, y.ctypes.data, x.size)
    assert y[0] == y[1] == 1.0
    assert np.isfinite(y).all()
    assert y[2] == y[4] < 1e-37
    assert y[3] == y[5] > 1e37


def _bit_patterns() -> np.ndarray:
    bits = np.random.default_rng(1).integers(0, 2**32, 64_000, np.uint32)
    ties = (np.arange(16_000, dtype=np.uint32) << 17) | 0x8000  # exactly between two bfloat16
    return np.concatenate([bits, ties]).view(np.float32)


def test_bfloat16_rounds_to_nearest_even_for_every_kind_of_value() -> None:
    x = _bit_patterns()
    with np.errstate(invalid="ignore"):
        want = x.astype(ml_dtypes.bfloat16)
    y = np.zeros(x.size, np.uint16)
    _to_bf16(x.ctypes.data, y.ctypes.data, x.size)
    got = y.view(ml_dtypes.bfloat16)
    numbers = ~np.isnan(x)
    assert (got[numbers] == want[numbers]).all()
    assert np.isnan(got[~numbers].astype(np.float32)).all()


def test_reductions_take_every_lane_once() -> None:
    x = (2.0 ** np.arange(16)).astype(np.float32)
    assert _reduce(x.ctypes.data) == (2.0**16 - 1, 2.0**15, 1.0)
    assert _reduce(x[::-1].copy().ctypes.data)[1] == 2.0**15


def test_select_range_takes_lanes_inside_only() -> None:
    x = np.arange(16, dtype=np.float32)
    for begin, end in ((0, 16), (3, 9), (-5, 4), (12, 99), (5, 5), (20, 30), (-9, -1)):
        y = np.zeros_like(x)
        _between(x.ctypes.data, y.ctypes.data, begin, end)
        lanes = np.arange(16)
        assert (y == np.where((lanes >= begin) & (lanes < end), x, -1.0)).all()
