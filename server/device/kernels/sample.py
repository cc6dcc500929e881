"""One token from each row of logits, among those its mask allows: greedy, or by weight after top-k, top-p and min-p.

No sorting: a cut is the smallest weight that stays, found by bisection over the bits of a float32, each probe one pass
of vector code. Randomness is a hash of (seed, index), so a draw depends on nothing but the request itself.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types, uint64

from server.device.kernels import simd
from server.device.kernels.jit import inline, kernel, share_begin
from server.device.kernels.memory import emitted, load_f32, load_i32, load_i64, store_f32, store_i64
from server.device.kernels.records import SAMPLE, STEP

_LEAST = -3.4028234663852886e38  # the smallest float32 that is a number
_ONE_BITS = 0x3F800000  # float32 1.0: the weight of the likeliest token


@emitted(types.float32, types.int64)
def _from_bits(builder: Any, bits: Any) -> Any:
    return builder.bitcast(builder.trunc(bits, ir.IntType(32)), ir.FloatType())


@inline
def uniform(seed, index):  # type: ignore[no-untyped-def]
    """A number in (0, 1) from two integers: splitmix64's finalizer over both (Steele et al. 2014)."""
    x = uint64(seed) * uint64(0x9E3779B97F4A7C15) + (uint64(index) + uint64(1)) * uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    x = x ^ (x >> uint64(31))
    return ((x >> uint64(40)) + 0.5) / 16777216.0


@inline
def _forbid(row, mask, vocab):  # type: ignore[no-untyped-def]
    """Logits of tokens whose bit of `mask` is 0 become -infinity. A mask is mostly words of all ones or all zeros."""
    for first in range(0, vocab, 32):
        bits = load_i32(mask + first // 8)
        if bits == 0 and first + 32 <= vocab:
            simd.store(row + first * 4, simd.splat(-math.inf))
            simd.store(row + first * 4 + 64, simd.splat(-math.inf))
        elif bits != -1:
            for i in range(min(32, vocab - first)):
                if (bits >> i) & 1 == 0:
                    store_f32(row + (first + i) * 4, -math.inf)


@inline
def _greedy(row, vocab):  # type: ignore[no-untyped-def]
    """Index of the largest logit, the first of equals; -1 when one is NaN or +infinity, or all are -infinity."""
    lowest, one, zero = simd.splat(-math.inf), simd.splat(1.0), simd.splat(0.0)
    highest, numbers = lowest, zero
    for i in range(0, vocab, 16):
        value = simd.select_range(0, vocab - i, simd.load(row + i * 4), lowest)
        highest = simd.maximum(highest, value)
        numbers = simd.add(numbers, simd.where_at_least(value, lowest, one))  # NaN is not at least anything
    best = simd.max_lanes(highest)
    if simd.sum_lanes(numbers) < (vocab + 15) // 16 * 16 or best == math.inf:
        return -1
    for i in range(vocab):
        if load_f32(row + i * 4) == best and best > -math.inf:
            return i
    return -1


@inline
def _weigh(row, weights, vocab, highest, temperature):  # type: ignore[no-untyped-def]
    """weights = exp((logit - highest) / temperature), zero from `vocab` to the end of its last vector.

    Zero for a logit of -infinity too, which `simd.exp` would make a very small number.
    """
    by = simd.splat(1.0 / temperature)
    least = simd.splat(_LEAST)
    shift = simd.splat(highest)
    for i in range(0, vocab, 16):
        logit = simd.load(row + i * 4)
        value = simd.where_at_least(logit, least, simd.exp(simd.mul(simd.sub(logit, shift), by)))
        simd.store(weights + i * 4, simd.select_range(0, vocab - i, value, simd.splat(0.0)))


@inline
def _mass(weights, vocab, cut):  # type: ignore[no-untyped-def]
    """Sum of the weights that are at least `cut`."""
    total, limit = simd.splat(0.0), simd.splat(cut)
    for i in range(0, vocab, 16):
        value = simd.load(weights + i * 4)
        total = simd.add(total, simd.where_at_least(value, limit, value))
    return simd.sum_lanes(total)


@inline
def _count(weights, vocab, cut):  # type: ignore[no-untyped-def]
    """How many weights are at least `cut`."""
    total, limit, one = simd.splat(0.0), simd.splat(cut), simd.splat(1.0)
    for i in range(0, vocab, 16):
        total = simd.add(total, simd.where_at_least(simd.load(weights + i * 4), limit, one))
    return simd.sum_lanes(total)


@inline
def _top_k_cut(weights, vocab, k):  # type: ignore[no-untyped-def]
    """The largest cut that keeps at least k weights; equals of the k-th all stay."""
    low, high = 0, _ONE_BITS + 1  # `low` keeps enough, `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        if _count(weights, vocab, _from_bits(middle)) >= k:
            low = middle
        else:
            high = middle
    return _from_bits(low)


@inline
def _top_p_cut(weights, vocab, least, share):  # type: ignore[no-untyped-def]
    """The largest cut that keeps `share` of the mass of the weights that are at least `least`."""
    goal = _mass(weights, vocab, least) * share
    low, high = 0, _ONE_BITS + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _mass(weights, vocab, max(least, _from_bits(middle))) >= goal:
            low = middle
        else:
            high = middle
    return max(least, _from_bits(low))


@inline
def _draw(weights, vocab, cut, u):  # type: ignore[no-untyped-def]
    """The token at share `u` of the mass of the weights that are at least `cut`."""
    goal = _mass(weights, vocab, cut) * u
    limit, before = simd.splat(cut), 0.0
    for i in range(0, vocab, 16):
        value = simd.load(weights + i * 4)
        mass = simd.sum_lanes(simd.where_at_least(value, limit, value))
        if mass > 0.0 and before + mass >= goal:
            for j in range(i, min(i + 16, vocab)):
                weight = load_f32(weights + j * 4)
                if weight >= cut and weight > 0.0:
                    before += weight
                    if before >= goal:
                        return j
        else:
            before += mass
    for j in range(vocab - 1, -1, -1):  # rounding left the goal beyond the sum
        weight = load_f32(weights + j * 4)
        if weight >= cut and weight > 0.0:
            return j
    return -1


@inline
def _choose(operands, r, weights):  # type: ignore[no-untyped-def]
    vocab = load_i64(operands + SAMPLE.vocab)
    row = load_i64(operands + SAMPLE.logits) + r * load_i64(operands + SAMPLE.ldc) * 4
    mask = load_i64(load_i64(operands + SAMPLE.masks) + r * 8)
    if mask != 0:
        _forbid(row, mask, vocab)
    best = _greedy(row, vocab)
    temperature = load_f32(load_i64(operands + SAMPLE.temperature) + r * 4)
    if best < 0 or temperature == 0.0:
        return best
    _weigh(row, weights, vocab, load_f32(row + best * 4), temperature)
    cut = load_f32(load_i64(operands + SAMPLE.min_p) + r * 4)
    k = load_i64(load_i64(operands + SAMPLE.top_k) + r * 8)
    if 0 < k < vocab:
        cut = max(cut, _top_k_cut(weights, vocab, k))
    share = load_f32(load_i64(operands + SAMPLE.top_p) + r * 4)
    if share < 1.0:
        cut = _top_p_cut(weights, vocab, cut, share)
    seed = load_i64(load_i64(operands + SAMPLE.seed) + r * 8)
    return _draw(weights, vocab, cut, uniform(seed, load_i64(load_i64(operands + SAMPLE.drawn) + r * 8)))


@kernel
def sample(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Items are rows."""
    rows = load_i64(step + STEP.num_samples)
    weights = load_i64(operands + SAMPLE.weights) + worker * load_i64(operands + SAMPLE.ldc) * 4
    chosen = load_i64(operands + SAMPLE.chosen)
    for r in range(share_begin(rows, worker, workers), share_begin(rows, worker + 1, workers)):
        store_i64(chosen + r * 8, _choose(operands, r, weights))
