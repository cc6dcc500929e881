"""State of a row of attention while its keys are walked, and the merge of the states of two ranges of keys.

A row is one (token, query head) pair. Keys are walked in partitions of PARTITION tokens that begin at multiples of it,
each from a fresh state, and partitions are merged from the first to the last, whichever threads computed them. A row's
result does not depend on how its context was divided, chunked or batched.
"""

from __future__ import annotations

from ...device.attention_layout import SUMS, VALUES, row_state_bytes
from ..isa import simd
from ..isa.jit import inline
from ..isa.memory import load_f32, store_f32

LOWEST = -1e30  # the running maximum before the first key: finite, so that differences are never NaN

state_bytes = inline(row_state_bytes)


@inline
def first_key(position, window):  # type: ignore[no-untyped-def]
    """Return the first key that a query at `position` sees.

    A `window` of 0 means all keys, one below 0 chunks of that many tokens.
    """
    if window == 0:
        return 0
    if window < 0:
        return position - position % -window
    return max(0, position - window + 1)


@inline
def begin_state(state, head_pad):  # type: ignore[no-untyped-def]
    """Initialize a state that has seen no key."""
    store_f32(state, LOWEST)
    for at in range(SUMS, VALUES + 4 * head_pad, 64):
        simd.store(state + at, simd.splat(0.0))


@inline
def merge_state(total, part, head_pad):  # type: ignore[no-untyped-def]
    """Merge `part` into `total`, which covers the keys before it."""
    before, new = simd.splat(load_f32(total)), simd.splat(load_f32(part))
    highest = simd.maximum(before, new)
    keep, take = simd.exp(simd.sub(before, highest)), simd.exp(simd.sub(new, highest))
    store_f32(total, simd.first_lane(highest))
    for at in range(SUMS, VALUES + 4 * head_pad, 64):
        simd.store(total + at, simd.fma(simd.load(part + at), take, simd.mul(simd.load(total + at), keep)))


@inline
def copy_state(to, state, head_pad):  # type: ignore[no-untyped-def]
    """Copy a state."""
    store_f32(to, load_f32(state))
    for at in range(SUMS, VALUES + 4 * head_pad, 64):
        simd.store(to + at, simd.load(state + at))


@inline
def add_sink(total, score, head_dim):  # type: ignore[no-untyped-def]
    """Add a key with this score and a value of zero to `total`."""
    before, new = simd.splat(load_f32(total)), simd.splat(score)
    highest = simd.maximum(before, new)
    keep = simd.exp(simd.sub(before, highest))
    weight = simd.first_lane(simd.exp(simd.sub(new, highest)))
    store_f32(total, simd.first_lane(highest))
    for at in range(SUMS, VALUES + 4 * head_dim, 64):
        simd.store(total + at, simd.mul(simd.load(total + at), keep))
    store_f32(total + SUMS, load_f32(total + SUMS) + weight)


@inline
def finish_row(output, total, head_dim):  # type: ignore[no-untyped-def]
    """Write weighted values over the sum of weights, as `head_dim` float32."""
    whole = head_dim - head_dim % 16
    by = simd.splat(1.0 / simd.sum_lanes(simd.load(total + SUMS)))  # one division, which is slow, for each row
    for d in range(0, whole, 16):
        simd.store(output + d * 4, simd.mul(simd.load(total + VALUES + d * 4), by))
    for d in range(whole, head_dim):
        store_f32(output + d * 4, load_f32(total + VALUES + d * 4) * simd.first_lane(by))
