"""Norms of heads, rotation and the write of K and V to their slots against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from neuronserve.server.kernels.attention.items import COUNTER_BYTES
from neuronserve.server.kernels.attention.rope import head_squares, rope_kv_pairs
from neuronserve.server.kernels.dispatch import host_isas, shared_kernels
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import representative
from tests.kernels.kernel_bench import (
    Array,
    address,
    aligned,
    float_bits,
    from_cell,
    run,
    step_record,
    to_cell,
    work_counters,
)
from tests.kernels.rope_case import rope_operands

SHARED = {"bf16": shared_kernels("bfloat16", 64, 32, "portable"), "f32": shared_kernels("float32", 64, 32)}
TOLERANCE = {"bf16": 2.0**-8, "f32": 2e-5}  # of the larger of the result and CANCELLED
CANCELLED = 0.05  # below this a result is a difference of larger numbers
TOKENS, HEADS, KV_HEADS, POSITIONS = 9, 3, 2, 50
Q, K, V = slice(0, HEADS), slice(HEADS, HEADS + KV_HEADS), slice(HEADS + KV_HEADS, None)


def _close(got: Array, want: Array, cell: str) -> bool:
    return bool(np.all(np.abs(got - want) <= TOLERANCE[cell] * np.maximum(np.abs(want), CANCELLED)))


def _tables(rng: np.random.Generator, rotary: int) -> tuple[Array, Array]:
    angles = rng.uniform(0, 6, (POSITIONS, rotary // 2))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _rotated(x: Array, cos: Array, sin: Array, is_interleaved: bool = False) -> Array:
    """Rotate the first elements of x [..., head_dim]: pairs (i, i + half) of them, or neighbours."""
    rotary = 2 * cos.shape[-1]
    turned, rest = x[..., :rotary], x[..., rotary:]
    low, high = (turned[..., 0::2], turned[..., 1::2]) if is_interleaved else np.split(turned, 2, axis=-1)
    pairs = low * cos - high * sin, high * cos + low * sin
    both = np.stack(pairs, axis=-1).reshape(turned.shape) if is_interleaved else np.concatenate(pairs, axis=-1)
    return np.concatenate([both, rest], axis=-1)


def _normed(heads: Array, norm: str, weight: Array) -> Array:
    """Return heads [tokens, heads, head_dim] after a norm, by its definition."""
    if norm == "layer":
        heads = heads - heads.mean(-1, keepdims=True)
    axes = (-2, -1) if norm == "wide" else -1
    return heads / np.sqrt((heads**2).mean(axes, keepdims=True) + 1e-6) * weight


HEADS_AND_BLOCKS = [(8, 16), (9, 16), (64, 16), (80, 16), (256, 16), (256, 32)]
ROTATIONS = [(1.0, False), (0.25, False), (1.0, True), (0.5, True)]


@pytest.mark.parametrize("cell", SHARED)
@pytest.mark.parametrize(("head_dim", "block"), representative(HEADS_AND_BLOCKS, (9, 16), (80, 16)))
@pytest.mark.parametrize("norm", ["none", "each", "wide", "layer"])
@pytest.mark.parametrize(("rotated", "is_interleaved"), representative(ROTATIONS, (0.25, False), (0.5, True)))
def test_rope_prepares_heads_and_writes_their_slots(
    two_threads: WorkerPool, cell: str, head_dim: int, block: int, norm: str, rotated: float, is_interleaved: bool
) -> None:
    rng = np.random.default_rng(head_dim)
    pad = -(-head_dim // 16) * 16
    qkv = rng.standard_normal((TOKENS, HEADS + 2 * KV_HEADS, head_dim)).astype(np.float32)
    weights = rng.standard_normal((HEADS + KV_HEADS if norm in ("wide", "layer") else 2, head_dim)).astype(np.float32)
    cos, sin = _tables(rng, int(head_dim * rotated))
    positions = rng.integers(0, POSITIONS, TOKENS).astype(np.int32)
    groups = np.stack([rng.permutation(4 * block)[:TOKENS].astype(np.int32) for _ in range(2)])
    slots = groups[1]  # of the second group of layers
    q_weight, k_weight = (weights[:1], weights[1:]) if norm in ("none", "each") else (weights[Q], weights[K])
    want = qkv.copy()
    if norm != "none":
        want[:, Q], want[:, K] = _normed(qkv[:, Q], norm, q_weight), _normed(qkv[:, K], norm, k_weight)
    turned = _rotated(want, cos[positions][:, None], sin[positions][:, None], is_interleaved)

    work, counters = qkv.copy(), work_counters(two_threads, 77)
    k = to_cell(np.zeros((4, KV_HEADS, pad, block)), cell)
    v = to_cell(np.zeros((4, KV_HEADS, block, pad)), cell)
    squares = aligned((TOKENS, 1, 2), np.float32)
    operands = rope_operands(
        *(work, cos, sin, HEADS),
        q_norm=address(q_weight) if norm != "none" else 0,
        k_norm=address(k_weight) if norm != "none" else 0,
        norm_stride=head_dim * 4 if norm in ("wide", "layer") else 0,
        is_centered=int(norm == "layer"),
        squares=address(squares) if norm == "wide" else 0,
        q_total=HEADS * head_dim,
        k_total=KV_HEADS * head_dim,
        is_interleaved=int(is_interleaved),
        k_cache=address(k),
        v_cache=address(v),
        block_size=block,
        scale=float_bits(0.25),
        block_bytes=pad * block * k.itemsize,
        kv_group=1,
    )
    step = step_record(
        num_tokens=TOKENS,
        positions=address(positions),
        slots=address(groups),
        slots_stride=groups.strides[0],
        counters=address(counters),
    )
    if norm == "wide":
        run(two_threads, head_squares, [operands], step)
    run(two_threads, SHARED[cell].rope_kv, [operands], step)
    assert np.allclose(work[:, Q], turned[:, Q] * 0.25, rtol=2e-5, atol=4e-6)
    at, offset = slots // block, slots % block
    assert _close(from_cell(k)[at, :, :head_dim, offset], turned[:, K], cell)
    assert _close(from_cell(v)[at, :, offset, :head_dim], want[:, V], cell)
    assert not counters[:: COUNTER_BYTES // 8].any()
    assert np.count_nonzero(from_cell(v)) == TOKENS * KV_HEADS * head_dim


@pytest.mark.parametrize("cell", SHARED)
def test_a_norm_may_follow_the_rotation(two_threads: WorkerPool, cell: str) -> None:
    rng, head_dim, block = np.random.default_rng(2), 24, 16
    qkv = rng.standard_normal((TOKENS, HEADS + 2 * KV_HEADS, head_dim)).astype(np.float32)
    weights = rng.standard_normal((2, head_dim)).astype(np.float32)
    cos, sin = _tables(rng, 10)
    positions = rng.integers(0, POSITIONS, TOKENS).astype(np.int32)
    slots = rng.permutation(2 * block)[:TOKENS].astype(np.int32)
    turned = _rotated(qkv, cos[positions][:, None], sin[positions][:, None])
    q, k = _normed(turned[:, Q], "each", weights[0]) * 0.25, _normed(turned[:, K], "each", weights[1])
    work, counters = qkv.copy(), work_counters(two_threads)
    cells = [to_cell(np.zeros((2, KV_HEADS, *shape)), cell) for shape in ((32, block), (block, 32))]
    operands = rope_operands(
        *(work, cos, sin, HEADS),
        q_norm=address(weights),
        k_norm=address(weights) + head_dim * 4,
        norms_rotated=1,
        k_cache=address(cells[0]),
        v_cache=address(cells[1]),
        block_size=block,
        scale=float_bits(0.25),
        block_bytes=32 * block * cells[0].itemsize,
    )
    step = step_record(
        num_tokens=TOKENS, positions=address(positions), slots=address(slots), counters=address(counters)
    )
    run(two_threads, SHARED[cell].rope_kv, [operands], step)
    assert np.allclose(work[:, Q], q, rtol=2e-5, atol=4e-6)
    assert _close(from_cell(cells[0])[slots // block, :, :head_dim, slots % block], k, cell)


@pytest.mark.skipif("amx" not in host_isas(), reason="this host has no tile unit")
@pytest.mark.parametrize("head_dim", [64, 256])
def test_rope_in_pairs_writes_queries_and_a_cache_for_the_tile_unit(pool: WorkerPool, head_dim: int) -> None:
    rng = np.random.default_rng(0)
    tokens, block = 7, 32
    qkv = rng.standard_normal((tokens, HEADS + 2 * KV_HEADS, head_dim)).astype(np.float32)
    qkv[2, -1, 5] = np.nan  # values that are not finite are stored as zero
    cos, sin = _tables(rng, head_dim)
    positions = rng.integers(0, POSITIONS, tokens).astype(np.int32)
    slots = rng.permutation(4 * block)[:tokens].astype(np.int32)
    turned = _rotated(qkv, cos[positions][:, None], sin[positions][:, None])
    work, counters = qkv.copy(), work_counters(pool)
    queries = np.zeros((tokens, HEADS * head_dim), np.uint16)
    k = np.zeros((4, KV_HEADS, head_dim // 2, block, 2), np.uint16)
    v = np.zeros((4, KV_HEADS, block // 2, head_dim, 2), np.uint16)
    operands = rope_operands(
        *(work, cos, sin, HEADS),
        k_cache=address(k),
        v_cache=address(v),
        block_size=block,
        queries=address(queries),
        queries_width=HEADS * head_dim,
        block_bytes=head_dim * block * 2,
    )
    step = step_record(
        num_tokens=tokens, positions=address(positions), slots=address(slots), counters=address(counters)
    )
    run(pool, rope_kv_pairs, [operands], step)
    assert _close(from_cell(queries).reshape(tokens, HEADS, head_dim), turned[:, Q], "bf16")
    at, offset = slots // block, slots % block
    k_rows = from_cell(k).transpose(0, 3, 1, 2, 4).reshape(4, block, KV_HEADS, head_dim)
    assert _close(k_rows[at, offset], turned[:, K], "bf16")
    v_rows = from_cell(v).transpose(0, 2, 4, 1, 3).reshape(4, block, KV_HEADS, head_dim)
    assert _close(v_rows[at, offset], np.nan_to_num(qkv[:, V]), "bf16")
