"""Matmuls of weights in groups on every path of this host against numpy in float64, and the kernels of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from neuronserve.server.config.formats import Isa, WeightFormat, WeightGroups
from neuronserve.server.device.layout import group_shift, round_up, scale_bytes, tile_bytes
from neuronserve.server.kernels.dispatch import host_isas, linear_kernels
from neuronserve.server.kernels.isa.jit import Kernel
from neuronserve.server.kernels.matmul.epilogue import ACTIVATIONS
from neuronserve.server.kernels.matmul.groups import GroupedRows, dequantize_groups, quantize_groups, zero_code
from neuronserve.server.kernels.matmul.packing import GroupMemory, interleave, pack_grouped
from neuronserve.server.kernels.records import STEP, EmbedOperands, MatmulOperands, NormOperands, PackOperands
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import representative
from tests.kernels.kernel_bench import (
    Array,
    address,
    aligned,
    default_paths,
    float_bits,
    rounded,
    run,
    step_record,
    to_panels,
)
from tests.kernels.test_matmul import activated, close

CASES: list[tuple[WeightFormat, Isa]] = [
    (weights, isa)
    for weights in ("int8-groups", "int4", "mxfp4")
    for isa in host_isas()
    if linear_kernels(weights, isa).isa == isa  # type: ignore[arg-type]
]
OFTEN = default_paths(CASES)
SHIFTED = WeightGroups(64, is_symmetric=False)
GROUPS = [WeightGroups(32), SHIFTED, WeightGroups(128), WeightGroups(128, False)]

cases = pytest.mark.parametrize(("weights", "isa"), representative(CASES, *OFTEN))


def groups_of(weights: WeightFormat) -> list[WeightGroups]:
    """Return the groups that a format can have: all but int4 have one kind."""
    return GROUPS if weights == "int4" else GROUPS[:1]


def cases_with(names: str, variants: Sequence[tuple[Any, ...]], awkward: tuple[Any, ...]) -> Any:
    """Each case with each kind of groups and each variant; by default the awkward one with two kinds of groups."""
    every = [(*case, groups, *variant) for case in CASES for groups in groups_of(case[0]) for variant in variants]
    often = [each for each in every if each[:2] in OFTEN and each[2] in GROUPS[:2] and each[3:] == awkward]
    return pytest.mark.parametrize(("weights", "isa", "groups", *names.split()), representative(every, *often), ids=str)


class Shard:
    """A matrix [n, k] in a format with groups: the kernel's arrays, and the values of its codes."""

    def __init__(self, quantized: GroupedRows, weights: WeightFormat, groups: WeightGroups) -> None:
        n, k = quantized.codes.shape
        self.value, (scales, shifts) = dequantize_groups(quantized, weights), scale_bytes(weights, groups, n, k)
        self.tiles, self.scales = aligned((tile_bytes(weights, n, k),), np.uint8), aligned((scales,), np.uint8)
        self.shifts = aligned((shifts,), np.uint8) if shifts else None
        self.shift = group_shift(weights, groups)
        pack_grouped(quantized, weights, GroupMemory(self.tiles, self.scales, self.shifts))


def shard_of(matrix: Array, weights: WeightFormat, groups: WeightGroups) -> Shard:
    return Shard(quantize_groups(matrix.astype(np.float32), weights, groups), weights, groups)


class Inputs:
    """Activations [T, k] in blocks of sixteen rows, and their values."""

    def __init__(self, rows: Array) -> None:
        (num, k), padded = rows.shape, np.zeros((round_up(len(rows), 16), rows.shape[1]), np.float32)
        padded[:num] = rows
        chunks = padded.reshape(-1, k // 32, 32)
        scales = (np.abs(chunks).max(2) / 127).astype(np.float32)
        codes = np.rint(chunks / np.where(scales, scales, 1)[:, :, None])
        self.value = (codes * scales[:, :, None]).reshape(-1, k)[:num]
        sides = np.stack([scales.view(np.int32), -8 * codes.sum(2).astype(np.int32)], 2)
        self.blocks = aligned((len(padded) // 16, 20 * k), np.uint8)
        panels = to_panels(codes.reshape(-1, k), "i8")
        self.blocks[:, : 16 * k] = panels.view(np.uint8).reshape(-1, 16 * k)
        by_chunk = sides.reshape(-1, 16, k // 32, 2).transpose(0, 2, 1, 3)
        self.blocks[:, 16 * k :] = np.ascontiguousarray(by_chunk).view(np.uint8).reshape(-1, 4 * k)


class Product(NamedTuple):
    kernel: Kernel
    columns: int
    activation: str = "none"


def multiply(pool: WorkerPool, product: Product, x: Inputs, shards: list[Shard]) -> list[Array]:
    """Return the kernel's output [T, columns] on each core."""
    rows, (n, k) = len(x.value), shards[0].value.shape
    outputs = [aligned((round_up(rows, 16), product.columns), np.float32) for _ in shards]
    operands = [
        MatmulOperands(
            activations=address(x.blocks),
            row_scales=0,
            weights=address(shard.tiles),
            column_scales=address(shard.scales),
            column_sums=address(shard.shifts),
            output=address(output),
            n_tiles=n // 16,
            k_tiles=k // 64,
            ldc=product.columns,
            rows_field=STEP.num_tokens,
            scratch=0,
            scratch_stride=0,
            activation=ACTIVATIONS.index(product.activation),
            group_shift=shard.shift,
        )
        for shard, output in zip(shards, outputs, strict=True)
    ]
    run(pool, product.kernel, operands, step_record(num_tokens=rows))
    return [output[:rows] for output in outputs]


SHAPES = [(0, 64, 16, 1), (1, 64, 16, 1), (3, 192, 48, 2), (17, 320, 112, 2), (67, 64, 176, 2), (650, 128, 48, 2)]


@cases_with("rows k n cores", SHAPES, (17, 320, 112, 2))
def test_a_product_equals_numpy(
    pool: WorkerPool, weights: WeightFormat, isa: Isa, groups: WeightGroups, rows: int, k: int, n: int, cores: int
) -> None:
    kernels, rng = linear_kernels(weights, isa), np.random.default_rng(rows)
    x = Inputs(rng.standard_normal((rows, k)))
    shards = [shard_of(rng.standard_normal((n, k)) + 0.5, weights, groups) for _ in range(cores)]
    for got, shard in zip(multiply(pool, Product(kernels.matmul, n), x, shards), shards, strict=True):
        assert got.shape == (rows, n)
        assert not rows or close(got, x.value.astype(np.float64) @ shard.value.T)


@cases
def test_every_code_by_every_activation(two_threads: WorkerPool, weights: WeightFormat, isa: Isa) -> None:
    """Each code is alone in its group, multiplied by the largest int8 of either sign: the products are exact."""
    each = np.arange(256 if weights == "int8-groups" else 16)
    codes = np.full((each.size, 64), zero_code(weights), np.uint8)
    for places in ((5, 6, 17), (47, 45, 40)):
        codes[:, places[0]], codes[:, places[1]], codes[:, places[2]] = each, each, each[::-1]
    shard = Shard(GroupedRows(codes, np.full((each.size, 2), 0.5, np.float32)), weights, WeightGroups(32))
    x = np.zeros((2, 64))
    x[0, 5:7] = x[1, 17] = x[1, 47] = x[0, 44:46] = 127
    x[:, 31], x[:, 32] = -127, 3
    (got,) = multiply(two_threads, Product(linear_kernels(weights, isa).matmul, each.size), Inputs(x), [shard])
    assert np.array_equal(got, x @ shard.value.T)


@cases
@pytest.mark.parametrize("rows", representative([1, 4], 4))
def test_the_largest_sums_of_a_group_are_exact(
    two_threads: WorkerPool, weights: WeightFormat, isa: Isa, rows: int
) -> None:
    """All codes are equal, with activations of one sign and of both: int16 may hold intermediate sums."""
    each = np.arange(256 if weights == "int8-groups" else 16)
    codes = np.repeat(each.astype(np.uint8), 64).reshape(-1, 64)
    shard = Shard(GroupedRows(codes, np.full((each.size, 2), 0.5, np.float32)), weights, WeightGroups(32))
    signs = np.array([[1], [-1], [1], [-1]]) * np.where(np.arange(64) < 32, 1, np.where(np.arange(64) % 2, 1, -1))
    x = 127.0 * signs[:rows]
    (got,) = multiply(two_threads, Product(linear_kernels(weights, isa).matmul, each.size), Inputs(x), [shard])
    assert np.array_equal(got, x @ shard.value.T)


@pytest.mark.slow
@cases
@pytest.mark.parametrize(("rows", "size"), representative([(1, 64), (37, 128)], (37, 128)))
def test_a_gated_product_equals_numpy(pool: WorkerPool, weights: WeightFormat, isa: Isa, rows: int, size: int) -> None:
    kernels, rng = linear_kernels(weights, isa), np.random.default_rng(size)
    x = Inputs(rng.standard_normal((rows, 64)))
    gate, up = rng.standard_normal((2, size, 64)) * 0.4
    both = shard_of(interleave(gate, up), weights, groups_of(weights)[-1])
    (got,) = multiply(pool, Product(kernels.gated, size, "gelu_tanh"), x, [both])
    sums = (x.value.astype(np.float64) @ both.value.T).reshape(rows, size // 16, 2, 16)
    g, u = sums[:, :, 0].reshape(rows, size), sums[:, :, 1].reshape(rows, size)
    assert close(got, activated("gelu_tanh", g) * u)
    assert not kernels.gated_leaves_panels


@cases_with("", [()], ())
def test_a_row_does_not_depend_on_the_batch_or_the_threads(
    weights: WeightFormat, isa: Isa, groups: WeightGroups
) -> None:
    rng = np.random.default_rng(5)
    x, shard = rng.standard_normal((45, 256)), [shard_of(rng.standard_normal((112, 256)), weights, groups)]
    one, three, product = WorkerPool(1), WorkerPool(3), Product(linear_kernels(weights, isa).matmul, 112)
    (whole,) = multiply(one, product, Inputs(x), shard)
    for first, last in ((0, 1), (7, 9), (20, 45)):
        (part,) = multiply(three, product, Inputs(x[first:last]), shard)
        assert np.array_equal(part, whole[first:last])
    one.close()
    three.close()


@pytest.mark.parametrize(
    ("weights", "groups"),
    [(weights, groups) for weights in ("int8-groups", "mxfp8", "int4", "mxfp4") for groups in groups_of(weights)],
    ids=str,
)
def test_embedding_from_codes(two_threads: WorkerPool, weights: WeightFormat, groups: WeightGroups) -> None:
    table = np.random.default_rng(0).standard_normal((48, 192)).astype(np.float32)
    shard, tokens, hidden = shard_of(table, weights, groups), np.array([0, 47, 17], np.int32), aligned((3, 192), "f4")
    operands = EmbedOperands(
        table=address(shard.tiles),
        scales=address(shard.scales),
        hidden=address(hidden),
        vocab_per_core=48,
        width=192,
        scale=float_bits(3.0),
        shifts=address(shard.shifts),
        group_shift=shard.shift,
    )
    kernel = linear_kernels(weights).embed_tiles
    run(two_threads, kernel, [operands], step_record(num_tokens=3, token_ids=address(tokens)))
    assert np.allclose(hidden, shard.value[tokens] * 3.0, rtol=1e-5, atol=1e-6)


def same_blocks(got: Array, want: Inputs, k: int) -> bool:
    """Return whether scales are equal, codes differ by rounding only, and sums are those of these codes."""
    codes, wanted = (each[:, : 16 * k].view(np.int8).astype(int) for each in (got, want.blocks))
    sides, wanted_sides = (
        np.ascontiguousarray(each[:, 16 * k :]).view(np.int32).reshape(-1, k // 32, 16, 2)
        for each in (got, want.blocks)
    )
    sums = codes.reshape(-1, k // 64, 16, 2, 32).sum(4).transpose(0, 1, 3, 2).reshape(-1, k // 32, 16)
    scales = (np.ascontiguousarray(each[..., 0]).view(np.float32) for each in (sides, wanted_sides))
    return bool(
        np.abs(codes - wanted).max() <= 1
        and np.array_equal(sides[..., 1], -8 * sums)
        and np.allclose(*scales, rtol=1e-5)
    )


@pytest.mark.parametrize("is_repacked", [False, True])
def test_rows_and_panels_become_blocks(two_threads: WorkerPool, is_repacked: bool) -> None:
    rows = np.random.default_rng(1).standard_normal((32, 192)) * np.logspace(-3, 3, 192)
    rows[3, 64:96] = 0
    kernels, blocks = linear_kernels("int4"), aligned((2, 20 * 192), np.uint8)
    assert kernels.repack is not None
    source = to_panels(rows, "bf16") if is_repacked else rows.astype(np.float32)
    operands = PackOperands(address(source), address(blocks), 0, 192)
    kernel = kernels.repack if is_repacked else kernels.pack_rows
    run(two_threads, kernel, [operands], step_record(num_tokens=32))
    assert same_blocks(blocks, Inputs(rounded(rows, "bf16") if is_repacked else rows), 192)


def test_a_norm_leaves_blocks_and_nan_stays_in_its_chunk(two_threads: WorkerPool) -> None:
    hidden = np.random.default_rng(2).standard_normal((16, 64)).astype(np.float32)
    blocks, scratch = aligned((1, 20 * 64), np.uint8), aligned((2, 64), np.float32)
    weight = np.ones(64, np.float32)
    operands = NormOperands(
        hidden=address(hidden),
        partials=0,
        num_partials=0,
        partial_stride=0,
        post_weight=0,
        branch_scale=float_bits(1.0),
        weight=address(weight),
        shift=0,
        is_centered=0,
        stays=0,
        panels=address(blocks),
        row_scales=0,
        scratch=address(scratch),
        scratch_stride=scratch.strides[0],
        width=64,
        size=64,
        eps=float_bits(1e-5),
        rows_field=STEP.num_tokens,
        index_field=0,
    )
    want = Inputs(hidden / np.sqrt((hidden**2).mean(1, keepdims=True) + 1e-5))
    run(two_threads, linear_kernels("int4").reduce_norm, [operands], step_record(num_tokens=16))
    assert same_blocks(blocks, want, 64)
    weight[40] = np.nan
    run(two_threads, linear_kernels("int4").reduce_norm, [operands], step_record(num_tokens=16))
    scales = np.ascontiguousarray(blocks[:, 16 * 64 :]).view(np.float32).reshape(2, 16, 2)[..., 0]
    assert np.isfinite(scales[0]).all()
    assert np.isnan(scales[1]).all()


def test_mxfp4_values_are_those_of_ml_dtypes() -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), (16, 4))
    values = dequantize_groups(GroupedRows(codes, np.full((16, 2), 0.25, np.float32)), "mxfp4")
    assert np.array_equal(values, codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * 0.25)
