"""The sampling kernel: masks, ties, top-k, top-p and min-p, frequencies, seeds, and logits that are not finite."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.kernels.sample.records import SampleOperands
from neuronserve.server.kernels.sample.sample import sample, scratch_floats
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import representative
from tests.kernels.kernel_bench import Array, address, run, step_record


def draw(pool: WorkerPool, logits: Array, masks: dict[int, Array] | None = None, **params: float | Array) -> Array:
    """Draw one token for each row; `params` are scalars or one value a row, `masks` the allowed tokens of some rows."""
    rows, vocab = logits.shape
    ldc = -(-vocab // 16) * 16
    padded = np.full((rows, ldc), 1e9, np.float32)  # padding must never be chosen
    padded[:, :vocab] = logits
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "drawn": 0}
    kinds = {"top_k": np.int64, "seed": np.int64, "drawn": np.int64}
    arrays = {
        name: np.ascontiguousarray(np.broadcast_to(params.get(name, value), (rows,)), kinds.get(name, np.float32))
        for name, value in defaults.items()
    }
    chosen = np.zeros(rows, np.int64)
    scratch = np.zeros((pool.num_threads, scratch_floats(ldc)), np.float32)
    words = {
        row: np.packbits(np.resize(allowed, -(-vocab // 32) * 32), bitorder="little")
        for row, allowed in (masks or {}).items()
    }
    pointers = np.array([address(words[row], is_indirect=True) if row in words else 0 for row in range(rows)], np.int64)
    operands = SampleOperands(
        *(address(padded), ldc, vocab, address(scratch), scratch.shape[1]),
        *(address(arrays[name]) for name in defaults),
        *(address(pointers), address(chosen)),
    )
    run(pool, sample, [operands], step_record(num_samples=rows))
    return chosen


def kept(logits: Array, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Return the tokens that may be drawn: top-k and min-p first, then the smallest set with mass top_p."""
    p = np.exp(logits - logits.max())
    order = np.argsort(-p, kind="stable")
    order = [i for i in order if p[i] >= min_p][: top_k or None]
    mass = np.cumsum(p[order]) / p[order].sum()
    return set(order[: int(np.searchsorted(mass, top_p * (1 - 1e-6))) + 1])


def test_greedy_takes_the_first_of_the_largest(pool: WorkerPool) -> None:
    logits = np.random.default_rng(0).standard_normal((40, 333)).astype(np.float32)
    logits[3, [7, 200]] = 9.0
    assert np.array_equal(draw(pool, logits, temperature=0.0), logits.argmax(1))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_reported_for_their_row_only(two_threads: WorkerPool, bad: float) -> None:
    logits = np.random.default_rng(0).standard_normal((5, 50)).astype(np.float32)
    logits[2, 17] = bad
    logits[4] = -np.inf
    chosen = draw(two_threads, logits, temperature=np.array([0, 1, 0, 1, 1]))
    assert (chosen >= 0).tolist() == [True, True, False, True, False]


def test_minus_infinity_is_never_drawn(two_threads: WorkerPool) -> None:
    logits = np.full((200, 20), -np.inf, np.float32)
    logits[:, 3] = logits[:, 11] = 0.5
    assert set(draw(two_threads, logits, seed=np.arange(200))) == {3, 11}


LARGEST = 80_677_991  # the draw that gives the largest random number, 1 - 2^-25, for seed 0


def test_rounding_at_the_very_end_draws_nothing_forbidden(two_threads: WorkerPool) -> None:
    """The sum of the weights, taken in another order, may not reach the goal there."""
    logits = np.random.default_rng(5).standard_normal((2000, 400)).astype(np.float32)
    allowed = (np.arange(400) >= 100) & (np.arange(400) < 300)
    logits[1000:, ~allowed] = -np.inf
    assert draw(two_threads, np.log([[1 - 1e-7, 1e-7]]).astype(np.float32), drawn=LARGEST) == 1
    assert allowed[draw(two_threads, logits, dict.fromkeys(range(1000), allowed), drawn=LARGEST)].all()


def test_frequencies_follow_the_softmax(two_threads: WorkerPool) -> None:
    p = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    logits = np.tile(np.log(p) * 0.7, (40_000, 1)).astype(np.float32)
    chosen = draw(two_threads, logits, temperature=0.7, seed=7, drawn=np.arange(40_000))
    share = np.bincount(chosen, minlength=5) / len(chosen)
    assert np.abs(share - p).max() < 5 * np.sqrt(0.25 / len(chosen))


@given(seed=st.integers(0, 2**32), top_k=st.integers(0, 12), top_p=st.floats(0.05, 1.0), min_p=st.floats(0.0, 0.5))
def test_only_what_the_cuts_keep_is_drawn(
    two_threads: WorkerPool, seed: int, top_k: int, top_p: float, min_p: float
) -> None:
    logits = (np.random.default_rng(seed).standard_normal(37) * 2).astype(np.float32)
    rows = np.tile(logits, (300, 1))
    chosen = draw(two_threads, rows, top_k=top_k, top_p=top_p, min_p=min_p, seed=np.arange(300))
    allowed = kept(logits.astype(np.float64), top_k, top_p, min_p)
    assert set(chosen.tolist()) <= allowed
    if len(allowed) == 1:
        assert set(chosen.tolist()) == allowed


@pytest.mark.parametrize("vocab", representative([1000, 5003, 40_000], 5003))
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 0.9, 0.0), (0, 0.999, 0.0), (5, 1.0, 0.0), (700, 0.5, 0.0), (3000, 1.0, 0.0), (0, 0.8, 0.02), (50, 0.9, 0.3)],
)
def test_the_cuts_over_rows_of_many_blocks(
    pool: WorkerPool, vocab: int, top_k: int, top_p: float, min_p: float
) -> None:
    """Every kept token is drawn about as often as it weighs; others are never drawn."""
    logits = (np.random.default_rng(vocab).standard_normal(vocab) * 2).astype(np.float32)
    num_draws = 1500
    rows = np.tile(logits, (num_draws, 1))
    chosen = draw(pool, rows, top_k=top_k, top_p=top_p, min_p=min_p, seed=np.arange(num_draws))
    allowed = kept(logits.astype(np.float64), top_k, top_p, min_p)
    assert set(chosen.tolist()) <= allowed
    p = np.zeros(vocab)
    p[list(allowed)] = np.exp(logits[list(allowed)].astype(np.float64))
    below = np.cumsum(p / p.sum())  # cumulative mass up to a token: uniform over the draws
    shares = np.sort(below[chosen])
    distance = np.abs(shares - (np.arange(num_draws) + 0.5) / num_draws).max()
    assert distance < 2.0 / num_draws**0.5 + (p / p.sum()).max()  # Kolmogorov and Smirnov: 1 in 1,500 at 2


def test_equals_of_the_last_all_stay_in_any_block(two_threads: WorkerPool) -> None:
    logits = np.full(4000, -1.0, np.float32)
    tied = [3, 260, 1999, 2000, 3998]
    logits[tied] = 2.0
    chosen = draw(two_threads, np.tile(logits, (300, 1)), top_k=2, seed=np.arange(300))
    assert set(chosen.tolist()) == set(tied)


def test_a_draw_depends_on_seed_and_index_alone(pool: WorkerPool) -> None:
    logits = np.random.default_rng(2).standard_normal((8, 500)).astype(np.float32)
    seeds, drawn = np.arange(8) * 7 - 3, np.arange(8) % 3
    together = draw(pool, logits, seed=seeds, drawn=drawn, top_p=0.9)
    alone = [draw(pool, logits[i : i + 1], seed=seeds[i], drawn=drawn[i], top_p=0.9)[0] for i in range(8)]
    assert together.tolist() == alone
    other = draw(pool, logits, seed=seeds, drawn=drawn + 1, top_p=0.9)
    assert (other != together).any()


@given(
    seed=st.integers(0, 2**32),
    vocab=st.integers(1, 200),
    share=st.sampled_from([0.0, 0.02, 0.5, 0.98]),
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
)
def test_only_what_a_mask_allows_is_drawn(
    two_threads: WorkerPool, seed: int, vocab: int, share: float, temperature: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((6, vocab)) * 3).astype(np.float32)
    masks = {row: rng.random(vocab) < share for row in (1, 3, 4)}
    params = {"temperature": temperature, "seed": np.arange(6), "top_p": 0.9}
    chosen = draw(two_threads, logits, masks, **params)
    for row, allowed in masks.items():
        if not allowed.any():
            assert chosen[row] == -1
            continue
        alone = np.where(allowed, logits[row], -np.inf).astype(np.float32)
        assert allowed[chosen[row]]
        assert chosen[row] == draw(two_threads, alone[None], **{**params, "seed": row})[0]
    free = [0, 2, 5]  # rows without a mask are not affected
    assert chosen[free].tolist() == draw(two_threads, logits, **params)[free].tolist()
