"""Codes and scales that rope writes into an 8-bit KV cache, and their places."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neuronserve.server.config.formats import Isa, KVCacheDtype
from neuronserve.server.kernels.dispatch import shared_kernels
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import representative
from tests.kernels.attention_case import CACHES, INTEGERS
from tests.kernels.kernel_bench import Array, address, aligned, run, step_record, work_counters
from tests.kernels.rope_case import rope_operands

TOKENS, HEADS, KV_HEADS, BLOCK, BLOCKS = 9, 3, 2, 32, 3
EIGHT_BITS = [cache for cache in CACHES if cache[0] in ("int8", "fp8") and cache != ("int8", "avx512")]  # as avx2's
CODES = {"int8": np.int8, "fp8": ml_dtypes.float8_e4m3}


def written(pool: WorkerPool, cache: tuple[KVCacheDtype, Isa], qkv: Array, slots: Array) -> list[tuple[Array, Array]]:
    """Return K and V of each token as (codes [tokens, kv_heads, head_dim], scales [tokens, kv_heads, 1])."""
    (dtype, isa), head_dim = cache, qkv.shape[-1]
    caches = [aligned((BLOCKS, KV_HEADS, (head_dim + 4) * BLOCK), np.uint8) for _ in "kv"]
    cos, sin = np.ones((1, head_dim // 2), np.float32), np.zeros((1, head_dim // 2), np.float32)
    positions, counters, work = np.zeros(TOKENS, np.int32), work_counters(pool), qkv.copy()
    queries = np.zeros((TOKENS, HEADS * head_dim), np.uint16)
    operands = rope_operands(
        *(work, cos, sin, HEADS),
        k_cache=address(caches[0]),
        v_cache=address(caches[1]),
        block_size=BLOCK,
        queries=address(queries),
        queries_width=HEADS * head_dim,
        block_bytes=caches[0].shape[-1],
    )
    step = step_record(
        num_tokens=TOKENS, positions=address(positions), slots=address(slots), counters=address(counters)
    )
    kernel = shared_kernels("bfloat16", 64 if isa == "amx" else 80, BLOCK, isa, dtype).rope_kv
    run(pool, kernel, [operands], step)
    found = []
    for is_v, held in enumerate(caches):
        cells, scales = held[..., : head_dim * BLOCK], held[..., head_dim * BLOCK :].copy().view(np.float32)
        outer, inner = (BLOCK, head_dim) if is_v else (head_dim, BLOCK)
        if isa in ("amx", *INTEGERS):
            pairs = cells.reshape(BLOCKS, KV_HEADS, outer // 2, inner, 2)
            cells = pairs.swapaxes(-1, -2)
        cells = cells.reshape(BLOCKS, KV_HEADS, outer, inner)
        rows = np.moveaxis(cells if is_v else cells.swapaxes(-1, -2), 1, 2)  # [blocks, block, kv_heads, head_dim]
        at, offset = slots // BLOCK, slots % BLOCK
        found.append((rows[at, offset].view(CODES[dtype]), np.moveaxis(scales, 1, 2)[at, offset][..., None]))
    return found


@pytest.mark.parametrize("cache", EIGHT_BITS, ids="-".join)
@pytest.mark.parametrize("head_dim", representative([64, 96, 256], 96))
def test_codes_times_scales_are_the_heads(
    two_threads: WorkerPool, cache: tuple[KVCacheDtype, Isa], head_dim: int
) -> None:
    rng = np.random.default_rng(1)
    qkv = rng.standard_normal((TOKENS, HEADS + 2 * KV_HEADS, head_dim)).astype(np.float32)
    qkv *= rng.uniform(1e-3, 50, (TOKENS, HEADS + 2 * KV_HEADS, 1)).astype(np.float32)
    qkv[1, HEADS] = 0
    qkv[2, -1, 5], qkv[3, -1, 7], qkv[4, HEADS] = np.nan, np.inf, 1e-38
    for token, head, d, strange in ((5, HEADS + 1, 8, np.nan), (6, HEADS, 3, -np.inf)):
        qkv[token, head, [d, d + head_dim // 2]] = strange  # rotation takes the two together
    slots = rng.permutation(BLOCKS * BLOCK)[:TOKENS].astype(np.int32)
    k, v = written(two_threads, cache, qkv, slots)
    for (codes, found), heads in ((k, qkv[:, HEADS : HEADS + KV_HEADS]), (v, qkv[:, HEADS + KV_HEADS :])):
        want = np.where(np.isfinite(heads) & (np.abs(heads) > 1e-30), heads, 0)
        largest = np.abs(want).max(-1, keepdims=True)
        scales = expected = largest / (127 if cache[0] == "int8" else 240)
        if codes is k[0]:  # a key that is not finite scores NaN; a value is zero
            is_strange = ~np.isfinite(heads).all(-1, keepdims=True)
            assert is_strange.sum() == 2
            expected = np.where(is_strange, np.nan, expected)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        errors = np.abs(codes.astype(np.float32) * scales - want)
        if cache[0] == "int8":
            assert (errors <= 0.5001 * scales).all()
        else:  # three bits of mantissa; below the smallest normal number, 2**-6, is zero
            assert (errors <= np.maximum(np.abs(want) * 2.0**-4, scales * 2.0**-6) * 1.0001).all()
