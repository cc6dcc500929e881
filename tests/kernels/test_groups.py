"""4-bit codes: near the values, better than the plain scale, exact where possible, and within their range."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neuronserve.server.config.formats import WeightFormat, WeightGroups
from neuronserve.server.kernels.matmul.groups import GroupedRows, dequantize_groups, quantize_groups
from neuronserve.server.kernels.matmul.packing import GroupMemory, pack_grouped

ROWS = np.random.default_rng(0).standard_normal((48, 320)).astype(np.float32)
GROUPS = [WeightGroups(size, is_symmetric) for size in (32, 64, 128) for is_symmetric in (True, False)]


def squared_error(rows: np.ndarray, weights: WeightFormat, groups: WeightGroups) -> float:
    return float(np.square(dequantize_groups(quantize_groups(rows, weights, groups), weights) - rows).sum())


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_scales_are_better_than_those_of_the_largest_value(groups: WeightGroups) -> None:
    """Compare with ggml's Q4_0 (largest value at code -8) for symmetric groups, else with scales of both ends."""
    error = 0.0
    for begin in range(0, ROWS.shape[1], groups.size):
        values = ROWS[:, begin : begin + groups.size]
        if groups.is_symmetric:
            largest = values[np.arange(len(values)), np.abs(values).argmax(1)][:, None]
            plain = np.clip(np.rint(values / (largest / -8)), -8, 7) * (largest / -8)
        else:
            least, step = values.min(1)[:, None], np.ptp(values, axis=1)[:, None] / 15
            plain = np.rint((values - least) / step) * step + least
        error += float(np.square(plain - values).sum())
    assert squared_error(ROWS, "int4", groups) < 0.95 * error


def test_smaller_groups_and_shifts_err_less() -> None:
    errors = {(groups.size, groups.is_symmetric): squared_error(ROWS, "int4", groups) for groups in GROUPS}
    for is_symmetric in (True, False):
        assert errors[32, is_symmetric] < errors[64, is_symmetric] < errors[128, is_symmetric]
    assert all(errors[size, False] < errors[size, True] for size in (32, 64, 128))


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_each_code_is_the_nearest(groups: WeightGroups) -> None:
    quantized = quantize_groups(ROWS, "int4", groups)
    at, near = np.arange(ROWS.shape[1]) // groups.size, np.abs(dequantize_groups(quantized, "int4") - ROWS)
    steps = np.abs(quantized.scales)[:, at]
    inside = (quantized.codes > 0) & (quantized.codes < 15)
    assert (near[inside] <= 0.5001 * steps[inside]).all()
    assert quantized.codes.max() <= 15
    for values in (quantized.scales, quantized.shifts):
        assert values is None or np.array_equal(values, values.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("groups", GROUPS, ids=str)
def test_zeros_and_constants(groups: WeightGroups) -> None:
    rows = np.zeros((16, 128), np.float32)
    assert not dequantize_groups(quantize_groups(rows, "int4", groups), "int4").any()
    assert not dequantize_groups(quantize_groups(rows, "mxfp4", groups), "mxfp4").any()
    constant = dequantize_groups(quantize_groups(rows + 3, "int4", groups), "int4")
    assert np.allclose(constant, 3, rtol=1e-3)


def test_mxfp4_scales_are_powers_of_two_by_the_specification() -> None:
    rows = (ROWS * np.logspace(-6, 6, 48)[:, None]).astype(np.float32)
    quantized, grouped = quantize_groups(rows, "mxfp4", WeightGroups()), rows.reshape(48, -1, 32)
    assert np.array_equal(quantized.scales, np.exp2(np.floor(np.log2(np.abs(grouped).max(2))) - 2))
    scaled = np.clip(grouped / quantized.scales[:, :, None], -6, 6).reshape(48, -1)
    assert np.array_equal(quantized.codes, scaled.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15)


def test_a_tile_holds_two_codes_in_a_byte() -> None:
    codes = np.random.default_rng(1).integers(0, 16, (48, 64)).astype(np.uint8)
    tiles, scales = np.zeros(48 * 32, np.uint8), np.zeros(48 * 2 * 2, np.uint8)
    values = np.arange(96, dtype=np.float32).reshape(48, 2)
    pack_grouped(GroupedRows(codes, values), "int4", GroupMemory(tiles, scales, None))
    pair, last = tiles[:1024].reshape(2, 2, 4, 16, 4), tiles[1024:].reshape(2, 4, 16, 4)
    for n, k in ((0, 0), (0, 4), (17, 13), (31, 63), (32, 5), (47, 62)):
        chunk = pair[k // 32, n // 16] if n < 32 else last[k // 32]
        byte = int(chunk[k % 32 // 8, n % 16, k % 4])
        assert (byte >> 4 if k % 8 >= 4 else byte & 15) == codes[n, k]
    halves = scales.view(np.float16)
    assert np.array_equal(halves[:64].reshape(2, 2, 16)[1, 0], values[:16, 1])
    assert np.array_equal(halves[64:].reshape(2, 16)[1], values[32:, 1])
