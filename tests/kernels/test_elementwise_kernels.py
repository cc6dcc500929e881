"""Embedding, added rows, norm with all-reduce, and packing, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from neuronserve.server.config.formats import WeightFormat
from neuronserve.server.kernels.dispatch import linear_kernels, shared_kernels
from neuronserve.server.kernels.isa.jit import Kernel
from neuronserve.server.kernels.matmul.quantize import dequantize_rows, quantize_rows, rotated
from neuronserve.server.kernels.records import STEP, AddRowsOperands, EmbedOperands, NormOperands, PackOperands
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import representative
from tests.kernels.kernel_bench import (
    Array,
    address,
    aligned,
    float_bits,
    from_panels,
    rounded,
    run,
    step_record,
    to_cell,
    to_panels,
    to_tiles,
)

LINEAR = {"bf16": linear_kernels("bfloat16"), "f32": linear_kernels("float32"), "i8": linear_kernels("int8")}
ROTATED = linear_kernels("int8-rotated")
SHARED = {"bf16": shared_kernels("bfloat16", 64, 32, "portable"), "f32": shared_kernels("float32", 64, 32)}
TOLERANCE = {"bf16": 2.0**-8, "f32": 2e-5}  # of the larger of the result and CANCELLED
CANCELLED = 0.05  # below this a result is a difference of larger numbers


def _close(got: Array, want: Array, cell: str) -> bool:
    return bool(np.all(np.abs(got - want) <= TOLERANCE[cell] * np.maximum(np.abs(want), CANCELLED)))


@pytest.mark.parametrize("cell", SHARED)
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("scale", [1.0, 25.25])
def test_embedding_takes_each_token_from_the_core_that_holds_it(
    pool: WorkerPool, cell: str, tiled: bool, scale: float
) -> None:
    rng = np.random.default_rng(0)
    table = rounded(rng.standard_normal((96, 64)), cell)
    shards = [table[:48], table[48:]]
    stored = [to_tiles(s, cell) if tiled else to_cell(s, cell) for s in shards]
    tokens = np.array([0, 95, 47, 48, 3, 3], np.int32)
    hidden = aligned((6, 64), np.float32)
    kernel = LINEAR[cell].embed_tiles if tiled else SHARED[cell].embed_rows
    operands = [EmbedOperands(address(s), 0, address(hidden), 48, 64, float_bits(scale)) for s in stored]
    run(pool, kernel, operands, step_record(num_tokens=6, token_ids=address(tokens)))
    assert np.array_equal(hidden, table[tokens] * np.float32(scale))


@pytest.mark.parametrize("weights", ["int8", "int8-rotated", "fp8", "fp8_e5m2"])
@pytest.mark.parametrize("scale", [1.0, 25.25])
def test_embedding_from_codes_is_scaled(two_threads: WorkerPool, weights: WeightFormat, scale: float) -> None:
    table = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    quantized, tokens = quantize_rows(table, weights), np.array([0, 47, 17], np.int32)
    tiles, hidden = to_tiles(quantized.codes, ""), aligned((3, 64), np.float32)
    operands = EmbedOperands(address(tiles), address(quantized.scales), address(hidden), 48, 64, float_bits(scale))
    kernel = linear_kernels(weights).embed_tiles
    run(two_threads, kernel, [operands], step_record(num_tokens=3, token_ids=address(tokens)))
    atol = 1e-5 if weights == "int8-rotated" else 0
    assert np.allclose(hidden, dequantize_rows(quantized, weights)[tokens] * scale, rtol=1e-6, atol=atol)


def _codes(rows: Array) -> tuple[Array, Array]:
    """Return int8 codes of each row, and the scales, by definition."""
    scales = np.abs(rows).max(1) / 127
    return np.rint(rows / np.where(scales, scales, 1)[:, None]), scales


def _same(panels: Array, scales: Array, want: Array, cell: str) -> bool:
    """Return whether the panels hold `want` within their format's precision; int8 codes may differ by one."""
    got = from_panels(panels, len(want))
    if cell != "i8":
        return _close(got, want, cell)
    codes, row_scales = _codes(want)
    return bool(np.abs(got - codes).max() <= 1 and np.allclose(scales[: len(want)], row_scales, rtol=1e-5))


def _normed(rows: Array, size: int) -> Array:
    return rows / np.sqrt((rows[:, :size] ** 2).mean(1, keepdims=True) + 1e-5)


ROWS, WIDTH, SIZE = 19, 128, 90  # rows of `hidden`, its width, and the elements that are not padding


def _padded(values: Array) -> Array:
    """Return float32 rows as wide as `hidden`, zero beyond SIZE."""
    wide = aligned((*values.shape[:-1], WIDTH), np.float32)
    wide[..., :SIZE] = values
    return wide


def _reduce_norm(
    pool: WorkerPool, cell: str, hidden: Array, parts: Array, kernel: Kernel | None = None, **changes: int
) -> tuple[Array, Array]:
    """Return panels and row scales of `hidden` [ROWS, WIDTH] plus `parts` [n, ROWS, WIDTH], after RMSNorm."""
    panels, scales = to_panels(np.zeros((ROWS, WIDTH)), cell), np.zeros(ROWS, np.float32)
    ones, scratch = _padded(np.ones(SIZE)), aligned((pool.num_threads, WIDTH), np.float32)
    index = np.array([4, 0, 18], np.int32)
    operands = NormOperands(
        hidden=address(hidden),
        partials=address(parts),
        num_partials=len(parts),
        partial_stride=hidden.nbytes,
        post_weight=0,
        branch_scale=float_bits(1.0),
        weight=address(ones),
        shift=0,
        is_centered=0,
        stays=0,
        panels=address(panels),
        row_scales=address(scales),
        scratch=address(scratch),
        scratch_stride=scratch.strides[0],
        width=WIDTH,
        size=SIZE,
        eps=float_bits(1e-5),
        rows_field=STEP.num_tokens,
        index_field=0,
    )._replace(**changes)
    step = step_record(num_tokens=ROWS, num_samples=3, sample_rows=address(index))
    run(pool, kernel or LINEAR[cell].reduce_norm, [operands], step)
    return panels, scales


@pytest.mark.parametrize("cell", LINEAR)
@pytest.mark.parametrize("partials", representative([0, 1, 3], 0, 3))
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("has_post", [False, True])
def test_norm_adds_partials_then_norms(
    pool: WorkerPool, cell: str, partials: int, gathered: bool, has_post: bool
) -> None:
    rng = np.random.default_rng(partials)
    hidden = _padded(rng.standard_normal((ROWS, SIZE)))
    parts = _padded(rng.standard_normal((partials, ROWS, SIZE)))
    weight, post = _padded(rng.standard_normal((2, SIZE)))
    chosen = [4, 0, 18] if gathered else list(range(ROWS))
    branch = parts.sum(0)
    summed = hidden + (_normed(branch, SIZE) * post if has_post else branch) * np.float32(0.25)
    want = _normed(summed, SIZE) * weight
    panels, scales = _reduce_norm(
        pool,
        cell,
        hidden,
        parts,
        post_weight=address(post) if has_post else 0,
        branch_scale=float_bits(0.25),
        weight=address(weight),
        rows_field=STEP.num_samples if gathered else STEP.num_tokens,
        index_field=STEP.sample_rows if gathered else 0,
    )
    assert _same(panels, scales, want[chosen], cell)
    assert np.allclose(hidden[chosen], summed[chosen], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", LINEAR)
@pytest.mark.parametrize("has_shift", [False, True])
@pytest.mark.parametrize("mean", [0.3, 30.0])
def test_a_layer_norm_takes_the_mean_away(pool: WorkerPool, cell: str, has_shift: bool, mean: float) -> None:
    rng = np.random.default_rng(3)
    hidden, parts = (_padded(rng.standard_normal((*n, ROWS, SIZE)) + mean) for n in ((), (2,)))
    weight, shift = _padded(rng.standard_normal((2, SIZE)))
    summed = (hidden.astype(np.float64) + parts.sum(0))[:, :SIZE]
    want = (summed - summed.mean(1, keepdims=True)) / np.sqrt(summed.var(1, keepdims=True) + 1e-5) * weight[:SIZE]
    want = _padded(want + has_shift * shift[:SIZE])
    changes = {"weight": address(weight), "shift": address(shift) * has_shift}
    panels, scales = _reduce_norm(pool, cell, hidden, parts, is_centered=1, **changes)
    if cell == "f32":  # the sum is rounded in steps that the mean determines
        assert np.allclose(from_panels(panels, len(want)), want, rtol=1e-5, atol=1e-6 * mean)
    else:
        assert _same(panels, scales, want, cell)
    assert np.allclose(hidden[:, :SIZE], summed, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", LINEAR)
@pytest.mark.parametrize("is_centered", [0, 1])
def test_a_normed_row_may_take_the_place_of_the_stream(pool: WorkerPool, cell: str, is_centered: int) -> None:
    rng = np.random.default_rng(4)
    hidden, parts = (_padded(rng.standard_normal((*n, ROWS, SIZE))) for n in ((), (1,)))
    summed = (hidden + parts[0])[:, :SIZE]
    centered = summed - is_centered * summed.mean(1, keepdims=True)
    want = _padded(centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5))
    assert _same(*_reduce_norm(pool, cell, hidden, parts, is_centered=is_centered, stays=1), want, cell)
    assert np.allclose(hidden, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", LINEAR)
def test_without_a_norm_the_stream_itself_is_packed(pool: WorkerPool, cell: str) -> None:
    rng = np.random.default_rng(5)
    hidden, parts = (_padded(rng.standard_normal((*n, ROWS, SIZE))) for n in ((), (2,)))
    summed = hidden + parts.sum(0)
    assert _same(*_reduce_norm(pool, cell, hidden, parts, weight=0), summed, cell)
    assert np.allclose(hidden, summed, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", SHARED)
@pytest.mark.parametrize("is_by_position", [False, True])
def test_rows_of_positions_are_added_from_the_first_on(pool: WorkerPool, cell: str, is_by_position: bool) -> None:
    rng = np.random.default_rng(0)
    table, positions = rounded(rng.standard_normal((20, 64)), cell), np.array([0, 17, 3, 3, 9], np.int32)
    hidden = aligned((5, 64), np.float32)
    hidden[:] = rng.standard_normal((5, 64))
    want, stored = hidden + table[2 + positions * is_by_position], to_cell(table, cell)
    operands = AddRowsOperands(address(stored), address(hidden), 64, STEP.positions * is_by_position, 2)
    run(pool, SHARED[cell].add_rows, [operands], step_record(num_tokens=5, positions=address(positions)))
    assert np.array_equal(hidden, want)


@pytest.mark.parametrize("cell", LINEAR)
@pytest.mark.parametrize(("rows", "width"), representative([(1, 64), (5, 128), (33, 192)], (33, 192)))
def test_rows_are_packed_for_their_matmul(pool: WorkerPool, cell: str, rows: int, width: int) -> None:
    rng = np.random.default_rng(width)
    sources = [rng.standard_normal((rows, width)).astype(np.float32) * 3 for _ in range(2)]
    sources[1][0] = 0
    panels = [to_panels(np.zeros((rows, width)), cell) for _ in sources]
    scales = [np.full(rows, 9, np.float32) for _ in sources]
    operands = [PackOperands(*map(address, part), width) for part in zip(sources, panels, scales, strict=True)]
    run(pool, LINEAR[cell].pack_rows, operands, step_record(num_tokens=rows))
    for part in zip(panels, scales, sources, strict=True):
        assert _same(*part, cell)


@pytest.mark.parametrize("cell", ["f32", "i8"])
@pytest.mark.parametrize(("rows", "width"), representative([(1, 64), (5, 128), (33, 192)], (33, 192)))
def test_bfloat16_panels_are_packed_for_their_matmul(pool: WorkerPool, cell: str, rows: int, width: int) -> None:
    rng = np.random.default_rng(width)
    sources = [rounded(rng.standard_normal((rows, width)) * 3, "bf16") for _ in range(2)]
    panels = [to_panels(np.zeros((rows, width)), cell) for _ in sources]
    scales = [np.full(rows, 9, np.float32) for _ in sources]
    halves = [to_panels(source, "bf16") for source in sources]
    operands = [PackOperands(*map(address, part), width) for part in zip(halves, panels, scales, strict=True)]
    run(pool, LINEAR[cell].repack, operands, step_record(num_tokens=rows))
    for part in zip(panels, scales, sources, strict=True):
        assert _same(*part, cell)


@pytest.mark.parametrize("is_packed", [False, True])
def test_rotated_panels_hold_the_rotated_rows(pool: WorkerPool, is_packed: bool) -> None:
    """An outlier takes few of its row's steps, because it is spread over 256 values."""
    rows = rounded(np.random.default_rng(0).standard_normal((5, 576)), "bf16")
    rows[2, 70] = 100.0
    panels, scales = to_panels(np.zeros((5, 576)), "i8"), np.zeros(5, np.float32)
    source, scratch = to_panels(rows, "bf16") if is_packed else rows, aligned((pool.num_threads, 576), np.float32)
    operands = PackOperands(address(source), address(panels), address(scales), 576)
    operands = operands._replace(scratch=address(scratch), scratch_stride=scratch.strides[0])
    run(pool, ROTATED.repack if is_packed else ROTATED.pack_rows, [operands], step_record(num_tokens=5))
    assert _holds_rotated(panels, scales, rows)


def _holds_rotated(panels: Array, scales: Array, rows: Array) -> bool:
    want = rotated(rows.astype(np.float32))
    assert np.abs(scales / (np.abs(want).max(1) / 127) - 1).max() < 1e-5
    return bool(np.abs(from_panels(panels, len(rows)) * scales[:, None] - want).max() <= scales.max() * 0.501)


@pytest.mark.parametrize("is_normed", [False, True])
def test_the_residual_stream_is_rotated_after_its_norm_and_stays_itself(pool: WorkerPool, is_normed: bool) -> None:
    hidden = _padded(np.random.default_rng(4).standard_normal((ROWS, SIZE)))
    before, changes = hidden.copy(), {} if is_normed else {"weight": 0}
    parts = np.zeros((0, ROWS, WIDTH), np.float32)
    panels, scales = _reduce_norm(pool, "i8", hidden, parts, kernel=ROTATED.reduce_norm, **changes)
    normed = before / np.sqrt(np.square(before).sum(1, keepdims=True) / SIZE + 1e-5)
    assert _holds_rotated(panels, scales, normed if is_normed else before)
    assert np.array_equal(hidden, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_has_no_scale(two_threads: WorkerPool, bad: float) -> None:
    rows = np.ones((3, 64), np.float32)
    rows[1, 40] = bad
    panels, scales = to_panels(np.zeros((3, 64)), "i8"), np.zeros(3, np.float32)
    operands = PackOperands(address(rows), address(panels), address(scales), 64)
    run(two_threads, LINEAR["i8"].pack_rows, [operands], step_record(num_tokens=3))
    assert np.isfinite(scales).tolist() == [True, False, True]
