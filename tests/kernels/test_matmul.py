"""Every matmul kernel of this host against numpy in float64, over odd shapes, formats, cores and threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from numba import njit
from scipy.special import ndtr

from neuronserve.server.config.formats import DEFAULT_GROUPS, Isa, WeightFormat
from neuronserve.server.device.layout import K_TILES, round_up
from neuronserve.server.errors import DeviceError
from neuronserve.server.host.isa import ISAS
from neuronserve.server.kernels import dispatch
from neuronserve.server.kernels.dispatch import LinearKernels, host_isas, linear_kernels, linear_kernels_of
from neuronserve.server.kernels.isa import simd
from neuronserve.server.kernels.isa.jit import Kernel
from neuronserve.server.kernels.matmul.epilogue import ACTIVATIONS, OUTPUTS
from neuronserve.server.kernels.matmul.groups import dequantize_groups, quantize_groups
from neuronserve.server.kernels.matmul.packing import interleave
from neuronserve.server.kernels.matmul.quantize import dequantize_rows, quantize_rows
from neuronserve.server.kernels.records import STEP, MatmulOperands
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import representative
from tests.kernels.kernel_bench import (
    Array,
    address,
    aligned,
    default_paths,
    from_cell,
    from_panels,
    rounded,
    run,
    step_record,
    to_panels,
    to_tiles,
)

FORMATS: list[WeightFormat] = ["bfloat16", "int8", "int8-weight-only", "fp8", "fp8_e5m2"]
OWN: dict[WeightFormat, tuple[Isa, ...]] = {  # the instruction sets that a format has kernels for
    weights: tuple(isa for isa in ISAS if linear_kernels_of(weights, isa).isa == isa)
    for weights in ("float32", *FORMATS, "mxfp8")
}
CASES: list[tuple[WeightFormat, Isa]] = [
    (weights, isa) for weights, isas in OWN.items() for isa in isas if isa in host_isas()
]
OFTEN = default_paths(CASES)

GATES = ACTIVATIONS[1:]  # activations of gates

cases = pytest.mark.parametrize(("weights", "isa"), representative(CASES, *OFTEN))


def cases_with(names: str, variants: Sequence[tuple[Any, ...]], awkward: tuple[Any, ...]) -> Any:
    """Each case with each variant; by default the awkward one with each, and the others with bfloat16 alone."""
    bfloat16 = ("bfloat16", linear_kernels("bfloat16").isa)
    often = [(*case, *variant) for case in OFTEN for variant in variants if variant == awkward or case == bfloat16]
    every = [(*case, *variant) for case in CASES for variant in variants]
    return pytest.mark.parametrize(("weights", "isa", *names.split()), representative(every, *often))


class Shard:
    """One core's matrix [n, k] in a format: the kernel's arrays, and the values of its codes."""

    def __init__(self, matrix: Array, weights: WeightFormat) -> None:
        self.scales = self.sums = None
        self.bias = np.random.default_rng(len(matrix)).standard_normal(len(matrix)).astype(np.float32)
        if weights in ("bfloat16", "float32"):
            cell = "bf16" if weights == "bfloat16" else "f32"
            self.value, self.tiles = rounded(matrix, cell), to_tiles(matrix, cell)
            return
        if weights == "mxfp8":
            (n, k), grouped = matrix.shape, quantize_groups(matrix.astype(np.float32), weights, DEFAULT_GROUPS)
            scales = aligned((n // 16, k // 32, 16), ml_dtypes.bfloat16)
            scales[:] = grouped.scales.reshape(n // 16, 16, k // 32).transpose(0, 2, 1)
            self.value, self.tiles = dequantize_groups(grouped, weights), to_tiles(grouped.codes, "")
            self.scales = scales
            return
        quantized = quantize_rows(matrix.astype(np.float32), weights)  # type: ignore[arg-type]
        self.value = dequantize_rows(quantized, weights)  # type: ignore[arg-type]
        self.tiles, self.scales, self.sums = to_tiles(quantized.codes, ""), quantized.scales, quantized.sums


class Inputs:
    """Activations [T, k] in the form that the format's matmul reads, and their values."""

    def __init__(self, rows: Array, weights: WeightFormat) -> None:
        self.scales = np.zeros(len(rows), np.float32)
        if weights == "int8":
            self.scales = (np.abs(rows).max(1) / 127).astype(np.float32) if len(rows) else self.scales
            codes = np.rint(rows / self.scales[:, None])
            self.value, self.panels = codes * self.scales[:, None], to_panels(codes, "i8")
        else:
            cell = "f32" if weights == "float32" else "bf16"
            self.value, self.panels = rounded(rows, cell), to_panels(rows, cell)


class Product(NamedTuple):
    """A kernel and its settings."""

    kernel: Kernel
    weights: WeightFormat
    columns: int
    leaves_panels: bool = False
    activation: str = "none"
    has_bias: bool = False


def multiply(pool: WorkerPool, product: Product, x: Inputs, shards: list[Shard], shares: int = 0) -> list[Array]:
    """Return the kernel's output [T, columns] on each core; `shares` above 0 divides the rows."""
    rows, k = len(x.value), shards[0].value.shape[1]
    outputs = [output_of(round_up(rows, 16), product.columns, product.leaves_panels) for _ in shards]
    scratch = aligned((pool.num_threads + shares, 64 * k), np.uint8)
    operands = [operands_of(product, x, *pair, scratch) for pair in zip(shards, outputs, strict=True)]
    run(pool, product.kernel, operands, step_record(num_tokens=rows), shares)
    return [from_panels(output, rows) if product.leaves_panels else output[:rows] for output in outputs]


def operands_of(
    product: Product, x: Inputs, shard: Shard, output: Array, scratch: Array, **fields: int
) -> MatmulOperands:
    """Return the operands of one core; `scratch` is [threads, 64 k]."""
    n, k = shard.value.shape
    return MatmulOperands(
        activations=address(x.panels),
        row_scales=address(x.scales),
        weights=address(shard.tiles),
        column_scales=address(shard.scales),
        column_sums=address(shard.sums),
        output=address(output),
        n_tiles=n // 16,
        k_tiles=k // K_TILES[product.weights],
        ldc=product.columns,
        rows_field=STEP.num_tokens,
        scratch=address(scratch),
        scratch_stride=64 * k,
        activation=ACTIVATIONS.index(product.activation),
        bias=address(shard.bias) if product.has_bias else 0,
        **fields,
    )


def output_of(rows: int, columns: int, leaves_panels: bool) -> Array:
    """Return float32 rows, or bfloat16 panels."""
    if leaves_panels:
        return aligned((rows // 16, columns // 32, 16, 32), np.uint16)
    return aligned((rows, columns), np.float32)


def kernels_of(weights: WeightFormat, isa: Isa) -> LinearKernels:
    kernels = linear_kernels(weights, isa)
    assert kernels.isa == isa
    return kernels


def close(got: Array, want: Array) -> bool:
    return bool(np.abs(got - want).max() <= 4e-6 * np.abs(want).max() + 1e-6)


SHAPES = [
    (1, 64, 16, 1),
    (3, 128, 48, 2),
    (16, 64, 80, 3),
    (17, 192, 112, 2),
    (67, 64, 176, 2),
    (330, 4096, 32, 1),
    (650, 64, 48, 2),
]


@cases_with("rows k n cores", SHAPES, (17, 192, 112, 2))  # four rows and one, pairs of column tiles and one
def test_matmul_equals_numpy(
    pool: WorkerPool, weights: WeightFormat, isa: Isa, rows: int, k: int, n: int, cores: int
) -> None:
    kernels, rng = kernels_of(weights, isa), np.random.default_rng(rows)
    x = Inputs(rng.standard_normal((rows, k)), weights)
    shards = [Shard(rng.standard_normal((n, k)), weights) for _ in range(cores)]
    for got, shard in zip(multiply(pool, Product(kernels.matmul, weights, n), x, shards), shards, strict=True):
        assert close(got, x.value.astype(np.float64) @ shard.value.T)


@pytest.mark.parametrize(
    "isa", representative([isa for weights, isa in CASES if weights == "int8"], linear_kernels("int8").isa, "portable")
)
@pytest.mark.parametrize("rows", representative([1, 2, 5, 7], 5))
def test_the_largest_codes_are_multiplied_exactly(two_threads: WorkerPool, isa: Isa, rows: int) -> None:
    """Products of two codes exceed int16, and files have weights of -128."""
    rng, k, n = np.random.default_rng(rows), 256, 48
    codes = rng.choice(np.array([-128, -127, 127], np.int8), (n, k))
    x, shard = Inputs(rng.choice([-127.0, 127.0], (rows, k)), "int8"), Shard(np.ones((n, k)), "int8")
    shard.tiles, shard.scales = to_tiles(codes.view(np.uint8), ""), np.ones(n, np.float32)
    shard.sums = codes.sum(axis=1, dtype=np.int32)
    (got,) = multiply(two_threads, Product(kernels_of("int8", isa).matmul, "int8", n), x, [shard])
    assert np.array_equal(got, x.value.astype(np.int64) @ codes.astype(np.int64).T)


def activated(activation: str, x: Array) -> Array:
    """Return the activation by definition, in float64."""
    if activation == "none":
        return x
    if activation == "relu":
        return np.where(x <= 0, 0, x)
    if activation == "relu2":
        return np.square(np.where(x <= 0, 0, x))
    if activation == "gelu":
        return x * ndtr(x)
    if activation == "silu":
        return x / (1 + np.exp(-x))
    if activation == "quick_gelu":
        return x / (1 + np.exp(-1.702 * x))
    if activation == "swiglu_clamped":
        return np.minimum(x, 7) / (1 + np.exp(-1.702 * np.minimum(x, 7)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def product_of(activation: str, gate: Array, up: Array) -> Array:
    """Return the result of a gated product."""
    return activated(activation, gate) * (np.clip(up, -7, 7) + 1 if activation == "swiglu_clamped" else up)


OF_ROWS = [each for each in ACTIVATIONS if each != "swiglu_clamped"]  # swiglu_clamped is for gates alone
BIASED = [(rows, n, activation) for rows, n in ((1, 48), (37, 32), (70, 80)) for activation in OF_ROWS]


@cases_with("rows n activation", BIASED, (37, 32, "silu"))
def test_a_product_with_its_bias_is_activated(
    pool: WorkerPool, weights: WeightFormat, isa: Isa, rows: int, n: int, activation: str
) -> None:
    kernels, rng = kernels_of(weights, isa), np.random.default_rng(rows)
    x, shard = Inputs(rng.standard_normal((rows, 64)), weights), Shard(rng.standard_normal((n, 64)) * 0.4, weights)
    (got,) = multiply(pool, Product(kernels.matmul, weights, n, False, activation, has_bias=True), x, [shard])
    assert close(got, activated(activation, x.value.astype(np.float64) @ shard.value.T + shard.bias))


def gated(weights: WeightFormat, kernels: LinearKernels, size: int, activation: str) -> Product:
    return Product(kernels.gated, weights, size, kernels.gated_leaves_panels, activation)


GATED = [
    (rows, size, activation, has_bias)
    for rows, size in ((1, 64), (5, 128), (37, 64), (70, 192))
    for activation in GATES
    for has_bias in (False, True)
]


@cases_with("rows size activation has_bias", GATED, (37, 64, "silu", True))
def test_a_gated_product_equals_numpy(
    pool: WorkerPool, weights: WeightFormat, isa: Isa, rows: int, size: int, activation: str, has_bias: bool
) -> None:
    kernels, rng = kernels_of(weights, isa), np.random.default_rng(size)
    x = Inputs(rng.standard_normal((rows, 64)), weights)
    gate, up = rng.standard_normal((2, size, 64)) * (1.5 if activation == "swiglu_clamped" else 0.4)  # past limits
    both = Shard(interleave(gate, up), weights)
    (got,) = multiply(pool, gated(weights, kernels, size, activation)._replace(has_bias=has_bias), x, [both])
    sums = (x.value.astype(np.float64) @ both.value.T + has_bias * both.bias).reshape(rows, size // 16, 2, 16)
    g, u = sums[:, :, 0].reshape(rows, size), sums[:, :, 1].reshape(rows, size)
    want = product_of(activation, g, u)
    if kernels.gated_leaves_panels:
        assert np.allclose(got, want, rtol=2**-8 + 1e-4, atol=1e-6)  # as near as bfloat16 comes
    else:
        assert close(got, want)


def of_gates(pool: WorkerPool, weights: WeightFormat, activation: str, gates: Array) -> Array:
    """Return products of each gate [T] and one."""
    kernels, x = linear_kernels(weights), np.zeros((len(gates), 64))
    x[:, 0], x[:, 1] = gates, 1.0
    gate, up = (np.eye(64)[[i]].repeat(64, 0) for i in range(2))
    both = Shard(interleave(gate, up), weights)
    (got,) = multiply(pool, gated(weights, kernels, 64, activation), Inputs(x, weights), [both])
    assert np.array_equal(got, got[:, :1].repeat(64, 1), equal_nan=True)
    return got[:, 0]


@pytest.mark.parametrize("activation", GATES)
def test_activations_are_as_exact_as_float32(two_threads: WorkerPool, activation: str) -> None:
    gates = np.linspace(-9, 9, 4001).astype(np.float32)
    want = product_of(activation, gates.astype(np.float64), np.ones(1))
    assert (np.abs(of_gates(two_threads, "float32", activation, gates) - want) <= 1e-6 * np.abs(want) + 1e-12).all()


@pytest.mark.parametrize("weights", ["bfloat16", "float32"])
@pytest.mark.parametrize("activation", GATES)
def test_extreme_gates(two_threads: WorkerPool, weights: WeightFormat, activation: str) -> None:
    """Large gates neither overflow nor vanish; NaN stays in its row."""
    gates = np.array([1.0, -1e3, -200.0, 88.0, 1e4, 1e15, np.nan, 0.0, 1.0])
    got = of_gates(two_threads, weights, activation, gates)
    want = product_of(activation, np.clip(gates, -80, None), np.ones(1))
    assert np.allclose(got, want, rtol=2**-6, atol=1e-30, equal_nan=True)


@cases
def test_a_row_does_not_depend_on_the_batch_or_the_threads(weights: WeightFormat, isa: Isa) -> None:
    kernels, rng = kernels_of(weights, isa), np.random.default_rng(5)
    x, shard = rng.standard_normal((45, 256)), [Shard(rng.standard_normal((112, 256)), weights)]
    one, three, product = WorkerPool(1), WorkerPool(3), Product(kernels.matmul, weights, 112)
    (whole,) = multiply(one, product, Inputs(x, weights), shard)
    for first, last in ((0, 1), (7, 9), (20, 45)):
        (part,) = multiply(three, product, Inputs(x[first:last], weights), shard)
        assert np.array_equal(part, whole[first:last])
    (divided,) = multiply(three, product, Inputs(x, weights), shard, shares=5)  # from rows 0, 12, 20, 32 and 40 on
    assert np.array_equal(divided, whole)
    one.close()
    three.close()


@pytest.mark.parametrize("weights", FORMATS)
def test_no_rows_is_no_work(two_threads: WorkerPool, weights: WeightFormat) -> None:
    x, shard = Inputs(np.zeros((0, 64)), weights), Shard(np.ones((16, 64)), weights)
    (out,) = multiply(two_threads, Product(linear_kernels(weights).matmul, weights, 16), x, [shard])
    assert out.shape == (0, 16)


def test_an_instruction_set_the_host_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "host_isas", lambda: ("portable",))
    with pytest.raises(DeviceError, match="this host has no amx; it has portable"):
        linear_kernels("bfloat16", "amx")
    assert linear_kernels("bfloat16").isa == "portable"


_store_gated = OUTPUTS["gated_panels"].store


@njit
def _gate_to_bf16(gates: int, target: int, count: int, activation: int) -> None:
    for i in range(0, count, 16):
        _store_gated(target + i * 2, simd.load(gates + i * 4), simd.splat(1.0), 2, activation)


@pytest.mark.skipif("avx512-bf16" not in host_isas(), reason="this host has no AVX512-BF16")
@pytest.mark.parametrize("activation", GATES)
def test_activations_beside_the_tile_unit_are_as_exact_as_bfloat16(activation: str) -> None:
    gates = np.concatenate([np.linspace(-9, 9, 2000), [-1e30, -1e3, -95, 0, 95, 1e3, 1e15, 1e30, np.nan] + [1] * 7])
    source, got = gates.astype(np.float32), np.zeros(gates.size, np.uint16)
    _gate_to_bf16(source.ctypes.data, got.ctypes.data, gates.size, ACTIVATIONS.index(activation))
    with np.errstate(over="ignore"):
        want = product_of(activation, np.clip(source.astype(np.float64), -80, None), np.ones(1)).astype(np.float32)
    assert np.allclose(from_cell(got), want, rtol=2**-8 + 1e-4, atol=1e-7, equal_nan=True)
