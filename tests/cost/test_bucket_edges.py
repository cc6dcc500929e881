"""Advice on prompts that are a little too long for a compiled length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.cost.bucket_edges import ADDED_TOKENS, FIRST_COUNT, ObservedPrompts, PromptGraphs
from neuronserve.server.device.buckets import powers_of_two, smallest

LONGEST = 4096


def graphs(margin: int, buckets: tuple[int, ...] = powers_of_two(LONGEST)) -> PromptGraphs:
    return PromptGraphs(buckets, margin, lambda tokens: tokens / 5000)


def test_the_advice_names_both_buckets_their_times_and_a_better_one() -> None:
    assert str(graphs(1).edge({1024: 1})) == (
        "prompts of 1,024 tokens need the bucket of 2,048 (410 ms of prefill, 205 in 1,024): "
        "add a bucket of 1,152 (230 ms)"
    )
    assert graphs(0).edge({1024: 1}) is None, "a bucket that is filled is no edge by itself"
    assert str(graphs(0).edge({1020: 1}, ADDED_TOKENS)).startswith(
        "prompts of 1,020 tokens plus a BOS or a template (16 tokens) need the bucket of 2,048 (410 ms"
    )


def test_prompts_far_from_an_edge_or_with_nothing_to_gain_get_no_advice() -> None:
    for tokens in (100, 900, 1500, 4000, LONGEST):
        assert graphs(1).edge({tokens: 1}, ADDED_TOKENS) is None
    assert graphs(1).edge({130: 1}) is None, "no multiple of 128 lies between 128 and 256"
    assert PromptGraphs(powers_of_two(LONGEST), 1, lambda tokens: 0.1).edge({1024: 1}) is None, "no time is saved"
    assert graphs(1, (LONGEST,)).edge({1024: 1}, ADDED_TOKENS) is None, "one bucket has no edge"


def test_of_many_prompts_the_edge_that_costs_most_is_named_with_its_share() -> None:
    edge = graphs(1).edge({100: 50, 520: 10, 1030: 20, 1100: 20})
    assert edge is not None
    assert (edge.share, edge.lengths, edge.bucket, edge.better) == (0.4, (1030, 1100), 2048, 1152)
    assert str(edge).startswith("40% of the prompts (1,030 to 1,100 tokens) need the bucket of 2,048")
    assert graphs(1).edge({100: 95, 1030: 5}) is None, "few prompts are not worth a graph"


@given(st.integers(1, LONGEST), st.integers(0, 1), st.sampled_from([0, ADDED_TOKENS]), st.integers(256, LONGEST))
def test_a_suggested_bucket_holds_the_prompts_and_is_shorter_than_theirs(
    tokens: int, margin: int, added: int, longest: int
) -> None:
    tokens, buckets = min(tokens, longest), powers_of_two(longest)
    edge = graphs(margin, buckets).edge({tokens: 1}, added)
    if edge is not None:
        assert edge.below < edge.better < edge.bucket
        assert tokens + added + margin <= edge.better
        assert smallest(buckets, tokens + edge.added, margin) == edge.bucket
        with_it = tuple(sorted({*buckets, edge.better}))
        assert smallest(with_it, tokens + edge.added, margin) == edge.better


def test_a_server_advises_once_and_only_when_it_has_seen_enough() -> None:
    observed = ObservedPrompts(graphs(1))
    found = [observed.add([1024]) for _ in range(4 * FIRST_COUNT)]
    assert [i for i, edge in enumerate(found) if edge is not None] == [FIRST_COUNT - 1]
    later = ObservedPrompts(graphs(1))
    for _ in range(FIRST_COUNT):
        assert later.add([100]) is None
    assert any(later.add([1024]) is not None for _ in range(FIRST_COUNT))
