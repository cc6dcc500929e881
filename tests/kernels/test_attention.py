"""Paged attention against plain softmax attention, and its independence of chunking, batch, threads and division."""

from __future__ import annotations

import numpy as np
import pytest

from neuronserve.server.config.formats import Isa, KVCacheDtype
from neuronserve.server.device.attention_layout import PARTITION
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import representative, thorough
from tests.kernels.attention_case import CACHES, INTEGERS, Case
from tests.kernels.kernel_bench import IS_EMULATED

Cache = tuple[KVCacheDtype, Isa]

SHAPES = [  # heads, kv heads, head_dim, block
    (4, 4, 64, 16),
    (14, 2, 64, 32),
    (5, 1, 80, 16),
    (6, 3, 96, 64),
    (6, 2, 96, 96),
    (3, 1, 8, 16),
    (3, 1, 9, 16),
    (4, 2, 17, 32),
    (2, 1, 128, 32),
    (4, 1, 256, 16),
    (4, 1, 256, 32),
]

OTHERS = () if IS_EMULATED else INTEGERS[:-1]  # instruction sets that this host does not serve with
caches = pytest.mark.parametrize(
    "cache", [thorough(each) if each[1] in OTHERS else each for each in CACHES], ids="-".join
)
integers = pytest.mark.parametrize("isa", [thorough(isa) if isa in OTHERS else isa for isa in INTEGERS])


def limit(cache: Cache) -> float:
    """Return the error limit: weights are rounded to bfloat16 for the tile unit, to integers for integer products.

    Small float8 are cut off then. The error of float8 itself is about 2e-2.
    """
    if cache[1] in INTEGERS:
        return 1e-3 if cache[0] == "fp8" else 1e-4
    return 2.0**-7 if cache[1] == "amx" else 2e-5


@caches
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block"),
    representative(SHAPES, (14, 2, 64, 32), (4, 2, 17, 32)),
)
@pytest.mark.parametrize("window", representative([0, 7, 40], 0, 40))
def test_attention_equals_softmax(
    two_threads: WorkerPool, cache: Cache, heads: int, kv_heads: int, head_dim: int, block: int, window: int
) -> None:
    if cache[1] == "amx" and (head_dim % 32 or block % 32):
        pytest.skip("the tile unit takes heads and blocks of whole tiles")
    case = Case(cache, heads, kv_heads, head_dim, block, window, [1, block, 67, 131])
    got = case.run(two_threads, [(s, 0, n) for s, n in enumerate(case.contexts)])
    want = np.concatenate([case.want(s) for s in range(4)])
    assert np.abs(got - want).max() <= limit(cache) * np.abs(want).max()


@caches
@pytest.mark.parametrize(
    ("window", "cap", "has_sinks"),
    representative(
        [(0, 1.5, False), (40, 0.0, True), (-40, 0.0, False), (-64, 0.8, True), (7, 2.0, True)],
        *((40, 0.0, True), (-64, 0.8, True)),
    ),
)
def test_capped_scores_sinks_and_chunks(
    two_threads: WorkerPool, cache: Cache, window: int, cap: float, has_sinks: bool
) -> None:
    case = Case(cache, 6, 2, 64, 32, window, [1, 32, 67, 131], cap, has_sinks)
    got = case.run(two_threads, [(s, 0, n) for s, n in enumerate(case.contexts)])
    want = np.concatenate([case.want(s) for s in range(4)])
    assert np.abs(got - want).max() <= limit(cache) * np.abs(want).max()


@caches
@pytest.mark.parametrize(("window", "has_sinks"), representative([(0, False), (40, True), (-40, False)], (0, False)))
def test_scores_fall_by_the_slope_of_each_head(
    two_threads: WorkerPool, cache: Cache, window: int, has_sinks: bool
) -> None:
    case = Case(cache, 6, 2, 64, 32, window, [1, 32, 67, 300], 0.0, has_sinks, has_slopes=True)
    got = case.run(two_threads, [(s, 0, n) for s, n in enumerate(case.contexts)])
    want = np.concatenate([case.want(s) for s in range(4)])
    assert np.abs(got - want).max() <= limit(cache) * np.abs(want).max()
    chunked = case.run(two_threads, [(3, 299, 300)], num_slots=8)  # partitions of one query
    assert np.array_equal(chunked[0], got[-1])


@caches
@pytest.mark.parametrize("window", representative([0, 7, 40], 7))
def test_tokens_of_a_span_see_those_behind_them(two_threads: WorkerPool, cache: Cache, window: int) -> None:
    case = Case(cache, 6, 2, 64, 32, window, [600], spans=((3, 90), (95, 96), (PARTITION - 70, PARTITION + 30)))
    got, want = case.run(two_threads, [(0, 0, 600)]), case.want(0)
    assert np.abs(got - want).max() <= limit(cache) * np.abs(want).max()
    begin, end = case.spans[-1]
    assert np.array_equal(case.run(two_threads, [(0, begin - 2, end)], tile_tokens=3), got[begin - 2 : end])


@pytest.mark.parametrize("sink", [-1e4, 1e4])
def test_a_sink_far_from_all_scores_takes_nothing_or_all(two_threads: WorkerPool, sink: float) -> None:
    case = Case(("float32", "portable"), 6, 2, 64, 32, 0, [67], has_sinks=True)
    case.sinks[:] = sink
    got, want = case.run(two_threads, [(0, 0, 67)]), case.want(0)
    assert np.abs(got - want).max() <= 2e-5
    assert np.isfinite(got).all()


@integers
def test_int16_queries_add_little_to_the_error_of_the_cache(two_threads: WorkerPool, isa: Isa) -> None:
    case, rng = Case(("int8", isa), 6, 2, 64, 32, 0, [300]), np.random.default_rng(1)
    case.q = [rng.standard_normal(q.shape).astype(np.float32) / 8 for q in case.q]
    got, want = case.run(two_threads, [(0, 0, 300)]), case.want(0)
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()  # the error of int8 itself is about 1e-2


@integers
@pytest.mark.parametrize("head_dim", [256, 640])
def test_sums_of_the_largest_codes_stay_in_int32(two_threads: WorkerPool, isa: Isa, head_dim: int) -> None:
    case = Case(("int8", isa), 2, 1, head_dim, 16, 0, [40])
    case.k_cache[..., : head_dim * 16] = 127
    case.k = [np.broadcast_to(np.abs(k).max(-1, keepdims=True), k.shape) for k in case.k]
    case.q = [np.full_like(q, 1 / head_dim) for q in case.q]
    got, want = case.run(two_threads, [(0, 0, 40)]), case.want(0)
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@integers
@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_not_finite_has_no_finite_result(two_threads: WorkerPool, isa: Isa, strange: float) -> None:
    case = Case(("int8", isa), 6, 2, 64, 32, 0, [70])
    case.q[0][69, 4, 17] = strange
    got = case.run(two_threads, [(0, 0, 70)])
    assert np.isnan(got[69, 4]).all()
    assert np.isfinite(np.delete(got.reshape(-1, 64), 69 * 6 + 4, axis=0)).all()


@caches
@pytest.mark.parametrize("window", representative([0, 21, -21], 21, -21))
def test_a_token_is_bitwise_the_same_however_it_is_computed(pool: WorkerPool, cache: Cache, window: int) -> None:
    case = Case(cache, 14, 2, 64, 32, window, [90, 35], cap=1.5, has_sinks=True)
    whole = case.run(pool, [(0, 0, 90)])
    mixed = case.run(pool, [(1, 30, 35), (0, 50, 90), (1, 0, 3)], tile_tokens=3)
    assert np.array_equal(mixed[5:45], whole[50:])
    decode = np.concatenate([case.run(pool, [(0, t, t + 1)], tile_tokens=1) for t in range(60, 90)])
    assert np.array_equal(decode, whole[60:])


@pytest.mark.slow
@caches
@pytest.mark.parametrize("window", representative([0, 700, -600], 0, 700))
@pytest.mark.parametrize("block", representative([32, 96], 32))
def test_a_long_context_is_bitwise_the_same_divided_or_not(
    pool: WorkerPool, cache: Cache, window: int, block: int
) -> None:
    length = 2 * PARTITION + 77
    case = Case(cache, 6, 2, 64, block, window, [length, 300], has_sinks=True)
    rows = [(0, t, t + 1) for t in (length - 1, PARTITION, 2 * PARTITION - 1, 2 * PARTITION)] + [(1, 299, 300)]
    divided = case.run(pool, rows, num_slots=20)
    together = case.run(pool, rows)
    assert np.array_equal(divided, together)
    prefill = case.run(pool, [(0, PARTITION - 5, length)], tile_tokens=5)
    positions = [first - PARTITION + 5 for seq, first, _ in rows if seq == 0]
    assert np.array_equal(prefill[positions], together[:4])
    want = case.want(0)[[first for seq, first, _ in rows if seq == 0]]
    assert np.abs(together[:4] - want).max() <= limit(cache) * np.abs(want).max()
