"""Every matmul kernel of this host against numpy in float64, over odd shapes, formats, cores and threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from server.config import WeightFormat
from server.device.layout import K_TILES, round_up
from server.errors import DeviceError
from server.kernels import dispatch
from server.kernels.dispatch import ISAS, Isa, host_isas, linear_kernels
from server.kernels.matmul.packing import interleave
from server.kernels.matmul.quantize import dequantize_rows, quantize_rows
from server.kernels.records import STEP, MatmulOperands
from server.kernels.workers import WorkerPool
from tests.depth import representative
from tests.kernels.kernel_bench import (
    Array,
    address,
    aligned,
    from_panels,
    rounded,
    run,
    step_record,
    to_panels,
    to_tiles,
)

FORMATS: list[WeightFormat] = ["bfloat16", "int8", "int8-weight-only", "fp8", "fp8_e5m2"]
OWN: dict[WeightFormat, tuple[Isa, ...]] = {  # the instruction sets that a format has kernels for
    "float32": ("portable",),
    "bfloat16": ("amx", "avx512", "portable"),
    "int8": ISAS,
    "int8-weight-only": ("amx", "portable"),
    "fp8": ("amx", "portable"),
    "fp8_e5m2": ("amx", "portable"),
}
CASES: list[tuple[WeightFormat, Isa]] = [
    (weights, isa) for weights, isas in OWN.items() for isa in isas if isa in host_isas()
]
# What this host serves with, and what every host has; those between are other hosts' best.
OFTEN = [case for case in CASES if case[1] in (linear_kernels(case[0]).isa, "portable")]

cases = pytest.mark.parametrize(("weights", "isa"), representative(CASES, *OFTEN))


class Shard:
    """One core's matrix [n, k] in a format: what the kernel is told, and what its codes stand for."""

    def __init__(self, matrix: Array, weights: WeightFormat) -> None:
        self.scales = self.sums = None
        if weights in ("bfloat16", "float32"):
            cell = "bf16" if weights == "bfloat16" else "f32"
            self.value, self.tiles = rounded(matrix, cell), to_tiles(matrix, cell)
            return
        quantized = quantize_rows(matrix.astype(np.float32), weights)  # type: ignore[arg-type]
        self.value = dequantize_rows(quantized, weights)  # type: ignore[arg-type]
        self.tiles, self.scales, self.sums = to_tiles(quantized.codes, ""), quantized.scales, quantized.sums


class Inputs:
    """Activations [T, k] in the form that the format's matmul reads, and what they stand for."""

    def __init__(self, rows: Array, weights: WeightFormat) -> None:
        self.scales = np.zeros(len(rows), np.float32)
        if weights == "int8":
            self.scales = (np.abs(rows).max(1) / 127).astype(np.float32) if len(rows) else self.scales
            codes = np.rint(rows / self.scales[:, None])
            self.value, self.panels = codes * self.scales[:, None], to_panels(codes, "i8")
        else:
            cell = "f32" if weights == "float32" else "bf16"
            self.value, self.panels = rounded(rows, cell), to_panels(rows, cell)


def multiply(
    pool: WorkerPool,
    kernel: Any,
    weights: WeightFormat,
    x: Inputs,
    shards: list[Shard],
    columns: int,
    leaves_panels: bool = False,
) -> list[Array]:
    """The kernel's output [T, columns] on each core."""
    rows, (n, k) = len(x.value), shards[0].value.shape
    outputs = [output_of(round_up(rows, 16), columns, leaves_panels) for _ in shards]
    scratch = aligned((pool.num_threads, 64 * k), np.uint8)
    operands = [
        MatmulOperands(
            activations=address(x.panels),
            row_scales=address(x.scales),
            weights=address(shard.tiles),
            column_scales=address(shard.scales),
            column_sums=address(shard.sums),
            output=address(output),
            n_tiles=n // 16,
            k_tiles=k // K_TILES[weights],
            ldc=columns,
            rows_field=STEP.num_tokens,
            scratch=address(scratch),
            scratch_stride=64 * k,
        )
        for shard, output in zip(shards, outputs, strict=True)
    ]
    run(pool, kernel, operands, step_record(num_tokens=rows))
    return [from_panels(output, rows) if leaves_panels else output[:rows] for output in outputs]


def output_of(rows: int, columns: int, leaves_panels: bool) -> Array:
    """float32 rows, or bfloat16 panels."""
    if leaves_panels:
        return aligned((rows // 16, columns // 32, 16, 32), np.uint16)
    return aligned((rows, columns), np.float32)


def kernels_of(weights: WeightFormat, isa: Isa) -> Any:
    kernels = linear_kernels(weights, isa)
    assert kernels.isa == isa
    return kernels


def close(got: Array, want: Array) -> bool:
    return bool(np.abs(got - want).max() <= 4e-6 * np.abs(want).max() + 1e-6)


@cases
@pytest.mark.parametrize(
    ("rows", "k", "n", "cores"),
    [
        (1, 64, 16, 1),
        (3, 128, 48, 2),
        (16, 64, 80, 3),
        (17, 192, 112, 1),
        (67, 64, 176, 2),
        (330, 4096, 32, 1),
        (650, 64, 48, 2),
    ],
)
def test_matmul_equals_numpy(
    pool: WorkerPool, weights: WeightFormat, isa: Isa, rows: int, k: int, n: int, cores: int
) -> None:
    kernels, rng = kernels_of(weights, isa), np.random.default_rng(rows)
    x = Inputs(rng.standard_normal((rows, k)), weights)
    shards = [Shard(rng.standard_normal((n, k)), weights) for _ in range(cores)]
    for got, shard in zip(multiply(pool, kernels.matmul, weights, x, shards, n), shards, strict=True):
        assert close(got, x.value.astype(np.float64) @ shard.value.T)


@cases
@pytest.mark.parametrize(("rows", "size"), [(1, 64), (5, 128), (37, 64), (70, 192)])
def test_swiglu_equals_numpy(pool: WorkerPool, weights: WeightFormat, isa: Isa, rows: int, size: int) -> None:
    kernels, rng = kernels_of(weights, isa), np.random.default_rng(size)
    x = Inputs(rng.standard_normal((rows, 64)), weights)
    gate, up = rng.standard_normal((2, size, 64)) * 0.4
    both = Shard(interleave(gate, up), weights)
    (got,) = multiply(pool, kernels.swiglu, weights, x, [both], size, kernels.swiglu_leaves_panels)
    sums = (x.value.astype(np.float64) @ both.value.T).reshape(rows, size // 16, 2, 16)
    g, u = sums[:, :, 0].reshape(rows, size), sums[:, :, 1].reshape(rows, size)
    want = g / (1 + np.exp(-g)) * u
    if kernels.swiglu_leaves_panels:
        assert np.allclose(got, want, rtol=2**-8 + 1e-4, atol=1e-6)  # as near as bfloat16 comes
    else:
        assert close(got, want)


@pytest.mark.parametrize(("gate", "want"), [(-1e3, 0.0), (-200.0, 0.0), (88.0, 88.0**2), (1e4, 1e8), (np.inf, np.nan)])
def test_swiglu_of_extreme_gates(two_threads: WorkerPool, gate: float, want: float) -> None:
    """Large gates neither overflow nor vanish; what is not a number stays so, in its row alone."""
    kernels, matrix = linear_kernels("bfloat16"), np.eye(64)[:1].repeat(64, 0)
    x = np.eye(64)[[0, 0, 0]] * [[1.0], [1.0 if np.isinf(gate) else gate], [1.0]]
    x[1, 1] = gate if np.isinf(gate) else 0.0  # infinity times a weight of zero is no number
    both = Shard(interleave(matrix, matrix), "bfloat16")
    leaves_panels = kernels.swiglu_leaves_panels
    (got,) = multiply(two_threads, kernels.swiglu, "bfloat16", Inputs(x, "bfloat16"), [both], 64, leaves_panels)
    assert np.allclose(got[[0, 2]], 0.7310586, rtol=2**-8)
    assert np.allclose(got[1], want, rtol=2**-6, atol=1e-30, equal_nan=True)


@cases
def test_a_row_does_not_depend_on_the_batch_or_the_threads(weights: WeightFormat, isa: Isa) -> None:
    kernels, rng = kernels_of(weights, isa), np.random.default_rng(5)
    x, shard = rng.standard_normal((45, 256)), [Shard(rng.standard_normal((112, 256)), weights)]
    one, three = WorkerPool(1), WorkerPool(3)
    (whole,) = multiply(one, kernels.matmul, weights, Inputs(x, weights), shard, 112)
    for first, last in ((0, 1), (7, 9), (20, 45)):
        (part,) = multiply(three, kernels.matmul, weights, Inputs(x[first:last], weights), shard, 112)
        assert np.array_equal(part, whole[first:last])
    one.close()
    three.close()


@pytest.mark.parametrize("weights", FORMATS)
def test_no_rows_is_no_work(two_threads: WorkerPool, weights: WeightFormat) -> None:
    x, shard = Inputs(np.zeros((0, 64)), weights), Shard(np.ones((16, 64)), weights)
    (out,) = multiply(two_threads, linear_kernels(weights).matmul, weights, x, [shard], 16)
    assert out.shape == (0, 16)


def test_an_instruction_set_the_host_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "host_isas", lambda: ("portable",))
    with pytest.raises(DeviceError, match="this host has no amx; it has portable"):
        linear_kernels("bfloat16", "amx")
    assert linear_kernels("bfloat16").isa == "portable"
