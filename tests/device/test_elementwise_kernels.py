"""Embedding, norm with all-reduce, rotary embedding with KV write, and SwiGLU against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from server.device.dispatch import kernel_set
from server.device.kernels.records import STEP, EmbedOperands, NormOperands, RopeOperands, SwigluOperands
from server.device.workers import WorkerPool
from tests.device.kernel_bench import (
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
)

CELLS = {"bf16": kernel_set("bfloat16"), "f32": kernel_set("float32")}
TOLERANCE = {"bf16": 2.0**-8, "f32": 2e-5}  # of the larger of the result and CANCELLED
CANCELLED = 0.05  # below this a result is a difference of larger numbers


def _close(got: Array, want: Array, cell: str) -> bool:
    return bool(np.all(np.abs(got - want) <= TOLERANCE[cell] * np.maximum(np.abs(want), CANCELLED)))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("tiled", [False, True])
def test_embedding_takes_each_token_from_the_core_that_holds_it(pool: WorkerPool, cell: str, tiled: bool) -> None:
    rng = np.random.default_rng(0)
    table = rounded(rng.standard_normal((96, 64)), cell)
    shards = [table[:48], table[48:]]
    stored = [to_tiles(s, cell) if tiled else to_cell(s, cell) for s in shards]
    tokens = np.array([0, 95, 47, 48, 3, 3], np.int32)
    hidden = aligned((6, 64), np.float32)
    kernel = CELLS[cell].embed_tiles if tiled else CELLS[cell].embed_rows
    operands = [EmbedOperands(address(s), address(hidden), 48, 64) for s in stored]
    run(pool, kernel, operands, step_record(num_tokens=6, token_ids=address(tokens)))
    assert np.array_equal(hidden, table[tokens])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("partials", [0, 1, 3])
@pytest.mark.parametrize("gathered", [False, True])
def test_norm_adds_partials_and_bias_then_norms(pool: WorkerPool, cell: str, partials: int, gathered: bool) -> None:
    rng = np.random.default_rng(partials)
    rows, width, size = 19, 96, 90
    hidden, weight, bias = aligned((rows, width), np.float32), rng.standard_normal(96), rng.standard_normal(96)
    hidden[:, :size] = rng.standard_normal((rows, size))
    parts = aligned((3, rows, width), np.float32)
    parts[:, :, :size] = rng.standard_normal((3, rows, size))
    weight, bias = weight.astype(np.float32), bias.astype(np.float32)
    bias[size:] = 0
    index = np.array([4, 0, 18], np.int32)
    chosen = index if gathered else np.arange(rows)
    summed = hidden + parts[:partials].sum(0) + bias
    want = summed / np.sqrt((summed[:, :size] ** 2).mean(1, keepdims=True) + 1e-5) * weight
    panels = to_panels(np.zeros((rows, width)), cell)
    operands = NormOperands(
        *(address(hidden), address(parts), partials, parts[0].nbytes, address(bias), address(weight), address(panels)),
        *(width, size, float_bits(1e-5), STEP.num_samples if gathered else STEP.num_tokens),
        STEP.sample_rows if gathered else 0,
    )
    step = step_record(num_tokens=rows, num_samples=3, sample_rows=address(index))
    run(pool, CELLS[cell].reduce_norm, [operands], step)
    assert _close(from_panels(panels, len(chosen)), want[chosen], cell)
    assert np.allclose(hidden[chosen], summed[chosen], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("rows", "size"), [(1, 32), (5, 96), (33, 160)])
def test_swiglu_equals_numpy(pool: WorkerPool, cell: str, rows: int, size: int) -> None:
    rng = np.random.default_rng(size)
    gate, up = (rng.standard_normal((rows, size)).astype(np.float32) * 3 for _ in range(2))
    both = aligned((rows, size // 16, 2, 16), np.float32)
    both[:, :, 0], both[:, :, 1] = gate.reshape(rows, -1, 16), up.reshape(rows, -1, 16)
    cores = [to_panels(np.zeros((rows, size)), cell) for _ in range(2)]
    operands = [SwigluOperands(address(both), address(panels), size) for panels in cores]
    run(pool, CELLS[cell].swiglu, operands, step_record(num_tokens=rows))
    want = gate / (1 + np.exp(-gate.astype(np.float64))) * up
    assert all(_close(from_panels(panels, rows), want, cell) for panels in cores)


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    """x [..., head_dim] with pairs (i, i + half) turned."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("head_dim", [8, 64, 80])
@pytest.mark.parametrize("has_norm", [False, True])
def test_rope_prepares_heads_and_writes_their_slots(pool: WorkerPool, cell: str, head_dim: int, has_norm: bool) -> None:
    rng = np.random.default_rng(head_dim)
    tokens, heads, kv_heads, block, pad = 9, 3, 2, 16, -(-head_dim // 16) * 16
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

    work, counter = qkv.copy(), np.array([77], np.int64)
    k = to_cell(np.zeros((4, kv_heads, pad, block)), cell)
    v = to_cell(np.zeros((4, kv_heads, block, pad)), cell)
    q_norm, k_norm = (norms[0], norms[1]) if has_norm else (None, None)
    operands = RopeOperands(
        *(address(work), work[0].size, address(bias), address(q_norm), address(k_norm), address(cos), address(sin)),
        *(address(k), address(v), heads, kv_heads, head_dim, pad, block, float_bits(1e-6), float_bits(0.25)),
    )
    step = step_record(num_tokens=tokens, positions=address(positions), slots=address(slots), counter=address(counter))
    run(pool, CELLS[cell].rope_kv, [operands], step)
    assert np.allclose(work[:, :heads], turned[:, :heads] * 0.25, rtol=2e-5, atol=2e-6)
    at, offset = slots // block, slots % block
    assert _close(from_cell(k)[at, :, :head_dim, offset], turned[:, heads : heads + kv_heads], cell)
    assert _close(from_cell(v)[at, :, offset, :head_dim], want[:, heads + kv_heads :], cell)
    assert counter[0] == 0
    assert np.count_nonzero(from_cell(v)) == tokens * kv_heads * head_dim
