"""Samples one token from each row of logits among those its mask allows: greedy, or after top-k, top-p and min-p.

Randomness is a hash of (seed, index), and one worker computes a row, so a draw depends on the request alone.
"""

from __future__ import annotations

import math

from numba import uint64

from ..isa import simd
from ..isa.jit import inline, kernel, share_begin
from ..isa.memory import load_f32, load_i32, load_i64, store_f32, store_i64
from ..records import STEP
from .records import SAMPLE
from .top_k_top_p import BLOCK, cut_for, first_of, gather, survey, token_of, weigh

_UNSEEN = 2.0**-25  # a share of the mass that no draw can select: random numbers have 24 bits


def scratch_floats(width: int) -> int:
    """Return a worker's scratch in float32 for rows of `width` logits: weights, room, maxima, starts."""
    return 2 * (width + 16) + 18 * (width // BLOCK + 1)


@inline
def uniform(seed, index):  # type: ignore[no-untyped-def]
    """Return a number in (0, 1) of two integers: splitmix64's finalizer over both (Steele et al. 2014)."""
    x = uint64(seed) * uint64(0x9E3779B97F4A7C15) + (uint64(index) + uint64(1)) * uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    x = x ^ (x >> uint64(31))
    return ((x >> uint64(40)) + 0.5) / 16777216.0


@inline
def _forbid(row, mask, vocab):  # type: ignore[no-untyped-def]
    """Set logits of tokens whose bit of `mask` is 0 to -infinity. Most words of a mask are all ones or all zeros."""
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
def _mass(weights, count, cut):  # type: ignore[no-untyped-def]
    """Return the sum of the weights that are at least `cut`."""
    total, limit = simd.splat(0.0), simd.splat(cut)
    for i in range(0, count, 16):
        value = simd.load(weights + i * 4)
        total = simd.add_where_at_least(total, value, limit, value)
    return simd.sum_lanes(total)


@inline
def _draw(weights, count, cut, u, sums):  # type: ignore[no-untyped-def]
    """Return the index of the weight at share `u` of the mass of weights >= `cut`; `sums` has room for all blocks."""
    total = 0.0
    for first in range(0, count, BLOCK):
        mass = _mass(weights + first * 4, min(BLOCK, count - first), cut)
        store_f32(sums + first // BLOCK * 4, mass)
        total += mass
    goal, before, first = total * u, 0.0, 0
    while first + BLOCK < count and before + load_f32(sums + first // BLOCK * 4) < goal:
        before += load_f32(sums + first // BLOCK * 4)
        first += BLOCK
    last = -1
    for j in range(first, count):
        weight = load_f32(weights + j * 4)
        if weight >= cut:
            last = j
            before += weight
            if before >= goal:
                break
    return last  # the last one, if the sum in another order did not reach the goal


@inline
def _least(operands, r, end, highest, maxima, scratch):  # type: ignore[no-untyped-def]
    """Return a lower limit of weights that can be drawn, by min-p and the row's maxima."""
    vocab, width = load_i64(operands + SAMPLE.vocab), load_i64(operands + SAMPLE.ldc)
    least = max(load_f32(load_i64(operands + SAMPLE.min_p) + r * 4), _UNSEEN / vocab)
    k = load_i64(load_i64(operands + SAMPLE.top_k) + r * 8)
    if 0 < k < vocab:
        temperature = load_f32(load_i64(operands + SAMPLE.temperature) + r * 4)
        count = weigh(maxima, end, highest, temperature, scratch)
        least = cut_for(scratch, count, k, False, least, scratch + (width + 16) * 4)  # k maxima reach that weight
    return least


@inline
def _draw_from(operands, r, end, highest, maxima, scratch):  # type: ignore[no-untyped-def]
    """Draw a token of row `r` by its weights; `scratch` has room for two rows."""
    vocab, width = load_i64(operands + SAMPLE.vocab), load_i64(operands + SAMPLE.ldc)
    row = load_i64(operands + SAMPLE.logits) + r * width * 4
    room, starts = scratch + (width + 16) * 4, maxima + (width // BLOCK + 1) * 64
    temperature = load_f32(load_i64(operands + SAMPLE.temperature) + r * 4)
    k = load_i64(load_i64(operands + SAMPLE.top_k) + r * 8)
    share = load_f32(load_i64(operands + SAMPLE.top_p) + r * 4)
    cut = _least(operands, r, end, highest, maxima, scratch)
    is_plain = cut <= _UNSEEN / vocab
    # All weights below (1 - share) / vocab together are less than the mass that top-p removes.
    keep = max(cut, (1.0 - share) / vocab) if is_plain else cut
    count, mass = gather(row, end, maxima, highest, temperature, cut, keep, scratch, starts)
    if 0 < k < vocab:
        cut = cut_for(scratch, count, k, False, cut, room)
    if share < 1.0:
        if not is_plain:
            mass = _mass(scratch, count, cut)
        # Top-p removes weights below its cut, so the removed mass is at most count times the cut.
        cut = cut_for(scratch, count, mass * share, True, max(cut, 0.999 * (1.0 - share) * mass / max(count, 1)), room)
    seed, drawn = load_i64(operands + SAMPLE.seed), load_i64(operands + SAMPLE.drawn)
    chosen = _draw(scratch, count, cut, uniform(load_i64(seed + r * 8), load_i64(drawn + r * 8)), maxima)
    return token_of(chosen, row, end, highest, temperature, keep, starts)


@inline
def _choose(operands, r, scratch):  # type: ignore[no-untyped-def]
    vocab, width = load_i64(operands + SAMPLE.vocab), load_i64(operands + SAMPLE.ldc)
    row = load_i64(operands + SAMPLE.logits) + r * width * 4
    mask = load_i64(load_i64(operands + SAMPLE.masks) + r * 8)
    if mask != 0:
        _forbid(row, mask, vocab)
    end = (vocab + 15) // 16 * 16
    last = row + (end - 16) * 4
    simd.store(last, simd.select_range(0, vocab - end + 16, simd.load(last), simd.splat(-math.inf)))
    maxima = scratch + (width + 16) * 8
    highest = survey(row, end, maxima)
    if abs(highest) == math.inf:
        return -1
    if load_f32(load_i64(operands + SAMPLE.temperature) + r * 4) == 0.0:
        return first_of(row, end, maxima, highest)
    return _draw_from(operands, r, end, highest, maxima, scratch)


@kernel
def sample(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Sample a token from each row. Items are rows."""
    rows = load_i64(step + STEP.num_samples)
    scratch = load_i64(operands + SAMPLE.scratch) + worker * load_i64(operands + SAMPLE.scratch_floats) * 4
    chosen = load_i64(operands + SAMPLE.chosen)
    for r in range(share_begin(rows, worker, workers), share_begin(rows, worker + 1, workers)):
        store_i64(chosen + r * 8, _choose(operands, r, scratch))
