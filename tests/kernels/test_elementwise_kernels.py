"""Embedding, norm with all-reduce, rotary embedding with KV write against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from server.config import Quantization
from server.kernels.attention.items import COUNTER_BYTES
from server.kernels.attention.rope import rope_kv_pairs
from server.kernels.dispatch import host_isas, linear_kernels, shared_kernels
from server.kernels.matmul.quantize import dequantize_rows, quantize_rows, rotated
from server.kernels.records import STEP, EmbedOperands, NormOperands, PackOperands, RopeOperands
from server.kernels.workers import WorkerPool
from tests.kernels.kernel_bench import (
    Array,
    address,
    aligned,
    float_bits,
    from_cell,
    from_panels,
    rounded,
    run,
    step_record,
    to_cell,
    to_panels,
    to_tiles,
    work_counters,
)

LINEAR = {"bf16": linear_kernels("bfloat16"), "f32": linear_kernels("float32"), "i8": linear_kernels("int8")}
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


@pytest.mark.parametrize("weights", ["int8", "fp8", "fp8_e5m2"])
@pytest.mark.parametrize("scale", [1.0, 25.25])
def test_embedding_from_codes_is_scaled(two_threads: WorkerPool, weights: Quantization, scale: float) -> None:
    table = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    quantized, tokens = quantize_rows(table, weights), np.array([0, 47, 17], np.int32)
    tiles, hidden = to_tiles(quantized.codes, ""), aligned((3, 64), np.float32)
    operands = EmbedOperands(address(tiles), address(quantized.scales), address(hidden), 48, 64, float_bits(scale))
    kernel = linear_kernels(weights).embed_tiles
    run(two_threads, kernel, [operands], step_record(num_tokens=3, token_ids=address(tokens)))
    assert np.allclose(hidden, dequantize_rows(quantized, weights)[tokens] * scale, rtol=1e-6, atol=0)


def _codes(rows: Array) -> tuple[Array, Array]:
    """int8 codes of each row, and the scales, by the definition."""
    scales = np.abs(rows).max(1) / 127
    return np.rint(rows / np.where(scales, scales, 1)[:, None]), scales


def _same(panels: Array, scales: Array, want: Array, cell: str) -> bool:
    """The panels hold `want` as well as their format can; int8 codes may differ by one where rounding is close."""
    got = from_panels(panels, len(want))
    if cell != "i8":
        return _close(got, want, cell)
    codes, row_scales = _codes(want)
    return bool(np.abs(got - codes).max() <= 1 and np.allclose(scales[: len(want)], row_scales, rtol=1e-5))


def _normed(rows: Array, size: int) -> Array:
    return rows / np.sqrt((rows[:, :size] ** 2).mean(1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("cell", LINEAR)
@pytest.mark.parametrize("partials", [0, 1, 3])
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("has_post", [False, True])
def test_norm_adds_partials_and_bias_then_norms(
    pool: WorkerPool, cell: str, partials: int, gathered: bool, has_post: bool
) -> None:
    rng = np.random.default_rng(partials)
    rows, width, size = 19, 128, 90
    hidden = aligned((rows, width), np.float32)
    weight, bias, post = rng.standard_normal((3, width)).astype(np.float32)
    hidden[:, :size] = rng.standard_normal((rows, size))
    parts = aligned((3, rows, width), np.float32)
    parts[:, :, :size] = rng.standard_normal((3, rows, size))
    bias[size:] = post[size:] = 0
    index = np.array([4, 0, 18], np.int32)
    chosen = index if gathered else np.arange(rows)
    branch = parts[:partials].sum(0) + bias
    summed = hidden + (_normed(branch, size) * post if has_post else branch)
    want = _normed(summed, size) * weight
    panels, scales = to_panels(np.zeros((rows, width)), cell), np.zeros(rows, np.float32)
    scratch = aligned((pool.num_threads, width), np.float32)
    operands = NormOperands(
        hidden=address(hidden),
        partials=address(parts),
        num_partials=partials,
        partial_stride=parts[0].nbytes,
        bias=address(bias),
        post_weight=address(post) if has_post else 0,
        weight=address(weight),
        panels=address(panels),
        row_scales=address(scales),
        scratch=address(scratch),
        width=width,
        size=size,
        eps=float_bits(1e-5),
        rows_field=STEP.num_samples if gathered else STEP.num_tokens,
        index_field=STEP.sample_rows if gathered else 0,
    )
    step = step_record(num_tokens=rows, num_samples=3, sample_rows=address(index))
    run(pool, LINEAR[cell].reduce_norm, [operands], step)
    assert _same(panels, scales, want[chosen], cell)
    assert np.allclose(hidden[chosen], summed[chosen], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", LINEAR)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (5, 128), (33, 192)])
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
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (5, 128), (33, 192)])
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
    """An outlier takes the steps of its neighbours no more: it is spread over four values."""
    kernels, rows = linear_kernels("int8-rotated"), rounded(np.random.default_rng(0).standard_normal((5, 128)), "bf16")
    rows[2, 70] = 100.0
    panels, scales = to_panels(np.zeros((5, 128)), "i8"), np.zeros(5, np.float32)
    source = to_panels(rows, "bf16") if is_packed else rows
    operands = PackOperands(address(source), address(panels), address(scales), 128)
    run(pool, kernels.repack if is_packed else kernels.pack_rows, [operands], step_record(num_tokens=5))
    assert np.abs(scales / (np.abs(rotated(rows)).max(1) / 127) - 1).max() < 1e-6
    assert np.abs(from_panels(panels, 5) * scales[:, None] - rotated(rows)).max() <= scales.max() * 0.501


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_has_no_scale(two_threads: WorkerPool, bad: float) -> None:
    rows = np.ones((3, 64), np.float32)
    rows[1, 40] = bad
    panels, scales = to_panels(np.zeros((3, 64)), "i8"), np.zeros(3, np.float32)
    operands = PackOperands(address(rows), address(panels), address(scales), 64)
    run(two_threads, LINEAR["i8"].pack_rows, [operands], step_record(num_tokens=3))
    assert np.isfinite(scales).tolist() == [True, False, True]


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    """x [..., head_dim] with pairs (i, i + half) turned."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


@pytest.mark.parametrize("cell", SHARED)
@pytest.mark.parametrize(("head_dim", "block"), [(8, 16), (64, 16), (80, 16), (256, 16), (256, 32)])
@pytest.mark.parametrize("has_norm", [False, True])
def test_rope_prepares_heads_and_writes_their_slots(
    pool: WorkerPool, cell: str, head_dim: int, block: int, has_norm: bool
) -> None:
    rng = np.random.default_rng(head_dim)
    tokens, heads, kv_heads, pad = 9, 3, 2, -(-head_dim // 16) * 16
    qkv = rng.standard_normal((tokens, heads + 2 * kv_heads, head_dim)).astype(np.float32)
    bias = rng.standard_normal((heads + 2 * kv_heads, head_dim)).astype(np.float32)
    norms = rng.standard_normal((2, head_dim)).astype(np.float32)
    angles = rng.uniform(0, 6, (50, head_dim // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    positions = rng.integers(0, 50, tokens).astype(np.int32)
    slots = rng.permutation(4 * block)[:tokens].astype(np.int32)

    want = qkv + bias
    if has_norm:
        for part, weight in ((slice(0, heads), norms[0]), (slice(heads, heads + kv_heads), norms[1])):
            mean = (want[:, part] ** 2).mean(-1, keepdims=True)
            want[:, part] = want[:, part] / np.sqrt(mean + 1e-6) * weight
    turned = _rotated(want, cos[positions][:, None], sin[positions][:, None])

    work, counters = qkv.copy(), work_counters(pool, 77)
    k = to_cell(np.zeros((4, kv_heads, pad, block)), cell)
    v = to_cell(np.zeros((4, kv_heads, block, pad)), cell)
    q_norm, k_norm = (norms[0], norms[1]) if has_norm else (None, None)
    operands = RopeOperands(
        *(address(work), work[0].size, address(bias), address(q_norm), address(k_norm), address(cos), address(sin)),
        *(address(k), address(v), heads, kv_heads, head_dim, pad, block, float_bits(1e-6), float_bits(0.25), 0, 0),
        pad * block * k.itemsize,
    )
    step = step_record(
        num_tokens=tokens, positions=address(positions), slots=address(slots), counters=address(counters)
    )
    run(pool, SHARED[cell].rope_kv, [operands], step)
    assert np.allclose(work[:, :heads], turned[:, :heads] * 0.25, rtol=2e-5, atol=2e-6)
    at, offset = slots // block, slots % block
    assert _close(from_cell(k)[at, :, :head_dim, offset], turned[:, heads : heads + kv_heads], cell)
    assert _close(from_cell(v)[at, :, offset, :head_dim], want[:, heads + kv_heads :], cell)
    assert not counters[:: COUNTER_BYTES // 8].any()
    assert np.count_nonzero(from_cell(v)) == tokens * kv_heads * head_dim


@pytest.mark.skipif("amx" not in host_isas(), reason="this host has no tile unit")
@pytest.mark.parametrize("head_dim", [64, 256])
def test_rope_in_pairs_writes_queries_and_a_cache_for_the_tile_unit(pool: WorkerPool, head_dim: int) -> None:
    rng = np.random.default_rng(0)
    tokens, heads, kv_heads, block = 7, 3, 2, 32
    qkv = rng.standard_normal((tokens, heads + 2 * kv_heads, head_dim)).astype(np.float32)
    qkv[2, -1, 5] = np.nan  # what is not finite is stored as zero
    cos, sin = (f(rng.uniform(0, 6, (50, head_dim // 2))).astype(np.float32) for f in (np.cos, np.sin))
    positions = rng.integers(0, 50, tokens).astype(np.int32)
    slots = rng.permutation(4 * block)[:tokens].astype(np.int32)
    turned = _rotated(qkv, cos[positions][:, None], sin[positions][:, None])
    work, counters = qkv.copy(), work_counters(pool)
    queries = np.zeros((tokens, heads * head_dim), np.uint16)
    k = np.zeros((4, kv_heads, head_dim // 2, block, 2), np.uint16)
    v = np.zeros((4, kv_heads, block // 2, head_dim, 2), np.uint16)
    operands = RopeOperands(
        *(address(work), work[0].size, 0, 0, 0, address(cos), address(sin), address(k), address(v)),
        *(heads, kv_heads, head_dim, head_dim, block, float_bits(1e-6), float_bits(1.0)),
        *(address(queries), heads * head_dim, head_dim * block * 2),
    )
    step = step_record(
        num_tokens=tokens, positions=address(positions), slots=address(slots), counters=address(counters)
    )
    run(pool, rope_kv_pairs, [operands], step)
    assert _close(from_cell(queries).reshape(tokens, heads, head_dim), turned[:, :heads], "bf16")
    at, offset = slots // block, slots % block
    k_rows = from_cell(k).transpose(0, 3, 1, 2, 4).reshape(4, block, kv_heads, head_dim)
    assert _close(k_rows[at, offset], turned[:, heads : heads + kv_heads], "bf16")
    v_rows = from_cell(v).transpose(0, 2, 4, 1, 3).reshape(4, block, kv_heads, head_dim)
    assert _close(v_rows[at, offset], np.nan_to_num(qkv[:, heads + kv_heads :]), "bf16")
