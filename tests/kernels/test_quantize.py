"""8-bit codes: nearest, symmetric, within the Neuron range, and equal to ml_dtypes where both define them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neuronserve.server.config.formats import Quantization, WeightFormat, WeightFormats
from neuronserve.server.kernels.matmul.quantize import (
    E4M3_MAX,
    E5M2_MAX,
    dequantize_rows,
    float8_table,
    quantize_rows,
    rotated,
)

ALL: list[Quantization] = ["int8", "int8-weight-only", "fp8", "fp8_e5m2"]
ROWS = np.random.default_rng(0).standard_normal((40, 300)).astype(np.float32) * np.logspace(-6, 6, 40)[:, None]
ROWS = ROWS.astype(np.float32)


@pytest.mark.parametrize(
    ("quantization", "dtype", "largest"),
    [("fp8", ml_dtypes.float8_e4m3, E4M3_MAX), ("fp8_e5m2", ml_dtypes.float8_e5m2, E5M2_MAX)],
)
def test_float8_codes_are_the_nearest_numbers(quantization: Quantization, dtype: type, largest: float) -> None:
    quantized = quantize_rows(ROWS, quantization)
    scaled = ROWS * (np.float32(1) / quantized.scales)[:, None]
    want = scaled.astype(dtype).astype(np.float32)
    got = float8_table(quantization)[quantized.codes]
    smallest = float(ml_dtypes.finfo(dtype).smallest_normal)
    normal = np.abs(want) >= smallest
    assert np.array_equal(got[normal], want[normal])
    assert (np.abs(got - scaled)[~normal] <= smallest / 2).all()
    assert (np.abs(got).max(1) > largest / 2).all()
    assert np.abs(got).max() <= largest


@pytest.mark.parametrize(
    ("quantization", "codes", "values"),
    [
        ("fp8", [0, 7, 8, 0x38, 0x77, 0x87, 0xB8], [0, 0, 2**-6, 1, 240, -0.0, -1]),
        ("fp8_e5m2", [0, 3, 4, 0x3C, 0x7B, 0x83, 0xBC], [0, 0, 2**-14, 1, 57344, -0.0, -1]),
    ],
)
def test_codes_below_the_smallest_normal_number_are_zero(
    quantization: Quantization, codes: list[int], values: list[float]
) -> None:
    np.testing.assert_array_equal(float8_table(quantization)[codes], np.array(values, np.float32))


@pytest.mark.parametrize("quantization", ALL)
def test_the_error_is_at_most_half_a_step(quantization: Quantization) -> None:
    quantized = quantize_rows(ROWS, quantization)
    error = np.abs(dequantize_rows(quantized, quantization) - ROWS)
    largest = np.abs(ROWS).max(1, keepdims=True)
    step = {"fp8": 2.0**-4, "fp8_e5m2": 2.0**-3}.get(quantization)
    limit = largest / 254 if step is None else np.maximum(np.abs(ROWS) * step, largest * 2.0**-13)
    assert (error <= limit * 1.0001).all()


def test_int8_sums_are_the_sums_of_the_codes() -> None:
    quantized = quantize_rows(ROWS, "int8")
    codes = quantized.codes.view(np.int8)
    assert np.array_equal(quantized.sums, codes.astype(np.int32).sum(1))
    assert codes.min() == -127 or codes.max() == 127
    assert codes.min() >= -127


@pytest.mark.parametrize("quantization", ALL)
def test_a_row_of_zeros_stays_zero(quantization: Quantization) -> None:
    quantized = quantize_rows(np.zeros((2, 64), np.float32), quantization)
    assert not dequantize_rows(quantized, quantization).any()
    assert np.isfinite(quantized.scales).all()


@pytest.mark.parametrize("width", [64, 192, 576, 2048])
def test_rotation_is_orthogonal_and_changes_no_product(width: int) -> None:
    rows, inputs = np.random.default_rng(3).standard_normal((2, 5, width)).astype(np.float32)
    four = np.full((4, 4), 0.5) - np.eye(4)
    blocks = np.kron(np.eye(width // 64), np.kron(four, np.kron(four, four)))
    quarters = np.kron(four, np.eye(width // 4))
    assert np.allclose(rotated(rows), rows @ blocks @ quarters, atol=1e-5)
    assert np.allclose(rotated(inputs) @ rotated(rows).T, inputs @ rows.T, atol=1e-3)


def test_equal_values_are_not_added_up_by_the_rotation() -> None:
    assert np.array_equal(rotated(np.full((2, 576), 3.0, np.float32)), np.full((2, 576), 3.0))


def test_an_outlier_in_each_input_costs_the_others_little() -> None:
    """A channel at 40 times the others' size takes most of a token's steps unless it is rotated."""
    rng = np.random.default_rng(9)
    inputs, rows = rng.standard_normal((64, 576)).astype(np.float32), rng.standard_normal((96, 576)).astype(np.float32)
    inputs[:, 100] *= 40
    want = inputs @ rows.T

    def error(quantization: WeightFormat) -> float:
        left, right = (dequantize_rows(quantize_rows(each, quantization), quantization) for each in (inputs, rows))
        return float(np.linalg.norm(left @ right.T - want) / np.linalg.norm(want))

    assert error("int8-rotated") < error("int8") / 2


def test_rotated_rows_stand_for_the_rows() -> None:
    rows = np.random.default_rng(4).standard_normal((8, 128)).astype(np.float32)
    quantized = quantize_rows(rows, "int8-rotated")
    assert np.abs(dequantize_rows(quantized, "int8-rotated") - rows).max() <= 2 * quantized.scales.max()
    assert np.array_equal(quantized.sums, quantized.codes.view(np.int8).astype(np.int32).sum(1))


@pytest.mark.parametrize("quantization", ["fp8", "fp8_e5m2"])
def test_float8_scales_are_chosen_for_the_row(quantization: Quantization) -> None:
    """The error is below that of the scale that maps the largest value to the largest code."""
    rows = np.random.default_rng(5).standard_normal((64, 512)).astype(np.float32)
    quantized, largest = quantize_rows(rows, quantization), np.abs(rows).max(1)
    table = float8_table(quantization)
    plain = largest / np.nanmax(np.where(np.arange(256) < (0x78 if quantization == "fp8" else 0x7C), table, 0))
    values = np.unique(table[np.isfinite(table)])
    scaled = rows / plain[:, None]
    at = np.clip(np.searchsorted(values, scaled), 1, len(values) - 1)
    nearest = np.where(scaled - values[at - 1] < values[at] - scaled, values[at - 1], values[at]) * plain[:, None]
    error = np.square(dequantize_rows(quantized, quantization) - rows).sum()
    assert error < 0.97 * np.square(nearest - rows).sum()


def test_only_matrices_that_this_server_quantizes_are_rotated() -> None:
    formats = WeightFormats("bfloat16", "int8", ("lm_head",), from_values=True)
    assert formats.of("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj") == "int8-rotated"
    assert formats.of("lm_head") == "bfloat16"
    assert WeightFormats("bfloat16", "int8").of("model.layers.0.mlp.down_proj") == "int8"


def test_modules_left_out_are_named_whole_or_by_a_parent() -> None:
    formats = WeightFormats("bfloat16", "int8", ("lm_head", "layers.1.mlp", "o_proj"))
    assert formats.of("lm_head") == "bfloat16"
    assert formats.of("model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj") == "bfloat16"
    assert formats.of("model.layers.0.self_attn.o_proj") == "bfloat16"
    assert formats.of("model.layers.11.mlp.gate_proj") == "int8"
    assert formats.of("model.layers.0.self_attn.q_proj") == "int8"
    assert WeightFormats("float32").of("lm_head") == "float32"
