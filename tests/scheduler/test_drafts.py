"""Drafters propose what followed the same tokens before; depths follow from chances and from what rows cost."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.config.speculation import SpeculationConfig
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.drafts import drafters
from neuronserve.server.scheduler.drafts.depth import Record, StepCosts, best_depths
from neuronserve.server.scheduler.drafts.drafters import NgramDrafter, SuffixDrafter
from neuronserve.server.scheduler.drafts.model_speculator import ModelSpeculator, common_depths
from neuronserve.server.scheduler.drafts.speculator import NO_PASSES, Speculator, _Drafting
from neuronserve.server.scheduler.drafts.text_index import TextIndex
from neuronserve.server.scheduler.sequence import Sequence
from neuronserve.server.types import Request, SamplingParams

NGRAM = SpeculationConfig("ngram", prompt_lookup_min=2, prompt_lookup_max=5)
SUFFIX = SpeculationConfig("suffix")


def sequence(prompt: list[int], output: list[int], salt: str = "", lora: str = "") -> Sequence:
    request = Request("r", tuple(prompt), SamplingParams(999), 0.0, cache_salt=salt, lora=lora)
    seq = Sequence(request, KVCacheManager(CacheConfig(8, 4)).open(salt, lora))
    seq.token_ids += output
    return seq


def proposed(drafter: NgramDrafter | SuffixDrafter, seq: Sequence, most: int = 8) -> list[int]:
    index = TextIndex(drafter.width)
    index.extend(seq.token_ids, len(seq.token_ids) - 1)
    return list(drafter.propose(seq, index, most))


@given(st.lists(st.integers(0, 2), min_size=4, max_size=60), st.integers(1, 5), st.integers(1, 3))
def test_prompt_lookup_continues_the_longest_repetition(text: list[int], most: int, least: int) -> None:
    config = dataclasses.replace(NGRAM, prompt_lookup_min=least)
    ends = range(least, len(text))
    shared = [max(n for n in range(min(5, end) + 1) if text[end - n : end] == text[len(text) - n :]) for end in ends]
    draft = proposed(NgramDrafter(config), sequence(text, []), most)
    best = max(shared, default=0)
    if len(text) <= 16:  # all occurrences are compared
        assert bool(draft) == (best >= least)
    if draft:
        assert len(draft) == most
        starts = [end for end, n in zip(ends, shared, strict=True) if n == best or len(text) > 16]
        assert any((text[end:] + draft)[:most] == draft for end in starts)


def test_a_loop_is_drafted_to_any_length() -> None:
    assert proposed(NgramDrafter(NGRAM), sequence([1, 2, 3, 1, 2, 3], []), 7) == [1, 2, 3, 1, 2, 3, 1]


def test_suffix_drafts_the_most_frequent_continuation_while_enough_agree() -> None:
    drafter = SuffixDrafter(dataclasses.replace(SUFFIX, suffix_decoding_min_token_prob=0.5))
    for tail in ([7, 7, 1], [7, 7, 2], [7, 5, 3], [7, 7, 4]):
        drafter.close(sequence([0], [1, 2, 3, 4, *tail]))
    assert proposed(drafter, sequence([9], [1, 2, 3, 4])) == [7, 7]
    assert proposed(drafter, sequence([9], [2, 3, 4])) == [7, 7]
    assert proposed(drafter, sequence([9], [3, 4])) == [], "shorter repetitions are chance"


def test_nobody_s_text_drafts_for_another_salt_or_adapter() -> None:
    drafter = SuffixDrafter(SUFFIX)
    drafter.close(sequence([0], [1, 2, 3, 4, 5, 6], salt="a", lora="x"))
    assert proposed(drafter, sequence([9], [1, 2, 3], salt="a", lora="x")) == [4, 5, 6]
    for salt, lora in (("", ""), ("a", ""), ("", "x"), ("b", "x")):
        assert proposed(drafter, sequence([9], [1, 2, 3], salt=salt, lora=lora)) == []


def test_outputs_of_others_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafters, "_MOST_POOLED_TOKENS", 400)
    drafter = SuffixDrafter(dataclasses.replace(SUFFIX, suffix_decoding_max_cached_requests=4))
    for i in range(40):
        drafter.close(sequence([0], [10 * i + j for j in range(9)], salt=str(i % 20)))
        assert drafter._num_pooled == sum(pool.num_tokens for pool in drafter._pools.values()) <= 400
    for i in range(10):
        drafter.close(sequence([0], [1000 * i + j for j in range(9)], salt="0"))
    known = [bool(proposed(drafter, sequence([9], [1000 * i + j for j in range(4)], salt="0"))) for i in range(10)]
    assert known == sorted(known)
    assert 2 <= sum(known) <= 4
    off = SuffixDrafter(dataclasses.replace(SUFFIX, suffix_decoding_max_cached_requests=0))
    off.close(sequence([0], [1, 2, 3, 4]))
    assert proposed(off, sequence([9], [1, 2, 3])) == []


def taught(slope: float) -> StepCosts:
    """Costs of a device whose step takes 1 + slope for each row after the first."""
    costs = StepCosts()
    for _ in range(60):
        for rows in (1, 2, 4, 9, 16, 40, 64):
            costs.observe(rows, 1 + slope * (rows - 1))
    return costs


def record(*results: bool) -> Record:
    made = Record()
    for is_right in results:
        made.add(is_right)
    return made


@pytest.mark.parametrize("slope", [0.0, 0.02, 0.1, 0.5, 1.0])
def test_costs_are_learnt_up_to_a_factor(slope: float) -> None:
    costs = taught(slope)
    for rows in (2, 9, 40):
        assert costs.of(rows) / costs.of(1) == pytest.approx(1 + slope * (rows - 1), rel=0.15)


def test_drafts_are_as_many_as_pay() -> None:
    right, wrong = record(*[True] * 30), record(*[False] * 30)
    cheap, dear = taught(0.02), taught(1.3)
    assert best_depths([(right, 15)], 1, 63, cheap) == [15]
    assert best_depths([(right, 15)], 1, 4, cheap) == [4], "more rows there are not"
    assert best_depths([(right, 15), (wrong, 15)], 2, 62, cheap) == [15, 0]
    assert best_depths([(right, 15)], 1, 63, dear) == [0]
    depths = [sum(best_depths([(right, 15)] * n, n, 64 - n, taught(0.2))) / n for n in (1, 2, 4, 8, 16, 32)]
    assert all(large <= small for small, large in pairwise(depths)), "larger batches have more rows already"


def test_a_wrong_draft_lowers_the_first_chance_and_a_right_one_the_others() -> None:
    after_right, after_wrong = record(True, True), record(True, False)
    assert list(after_right.chances(2)) > list(after_wrong.chances(2))
    assert list(record(*[False] * 20).chances(1)) == [], "it is too small to be worth a row"


@pytest.mark.parametrize(
    ("came", "left"),
    [
        ([1, 2, 3], [4, 5, 6, 7, 8, 9]),
        ([1, 2, 0], [4, 5, 6, 7, 8, 9]),  # in place of a token
        ([1, 2, 5], [6, 7, 8, 9]),  # tokens are left out
        ([1, 2, 0, 4, 0], [6, 7, 8, 9]),
        ([1, 2, 0, 0, 0], []),
        ([1, 0], []),  # nothing says yet that the texts are alike
    ],
)
def test_a_draft_goes_on_behind_a_token_that_differs(came: list[int], left: list[int]) -> None:
    drafting = _Drafting(sequence([1], []), 2, Record())
    drafting.take([1, 2, 3, 4, 5, 6, 7, 8, 9])
    drafting.compare(came)
    assert drafting.draft[drafting.at :] == left


def test_a_sequence_without_repetitions_is_looked_at_rarely_and_one_that_repeats_in_each_step() -> None:
    speculator = Speculator(NGRAM, SchedulerConfig(4096))
    seqs = [sequence([i], []) for i in (1000, 2000)]
    looks = []
    for step_id in range(1, 300):
        if speculator.wakes <= step_id:
            looks.append(step_id)
            speculator.drafts(seqs, 99, step_id)
        for i, seq in enumerate(seqs):
            seq.token_ids.append(step_id % 4 if step_id > 200 else 1000 * i + step_id)
    assert len([step_id for step_id in looks if 100 < step_id <= 200]) <= 7, "both in the same steps"
    assert looks[-80:] == list(range(220, 300))


def test_a_sequence_begins_with_what_earlier_ones_have_shown() -> None:
    usual, wrong = Record(), record(*[False] * 9)
    for _ in range(20):
        usual.learn(wrong)
    assert Record(known=usual).chance < 0.15 < Record().chance


@pytest.mark.parametrize(("num_tokens", "pays"), [(8, True), (2, False)])
def test_drafts_that_bring_less_than_was_expected_end_and_are_tried_again(num_tokens: int, pays: bool) -> None:
    costs, always = taught(0.5), record(*[True] * 30)
    for _ in range(40):
        costs.compare(num_tokens, 8, 8, costs.of(8))
    assert (sum(best_depths([(always, 15)], 1, 63, costs)) > 0) is pays
    for _ in range(40):
        costs.forgive()
    assert sum(best_depths([(always, 15)], 1, 63, costs)) > 0


@pytest.mark.parametrize("length", [1.0, 1.7, 4.0, 8.0])
def test_a_synthetic_length_is_the_mean_of_full_drafts(length: float) -> None:
    config = SpeculationConfig("ngram", 7, synthetic_acceptance_length=length)
    rate = config.acceptance_rate
    assert rate is not None
    assert sum(rate**right for right in range(8)) == pytest.approx(length, rel=1e-6)


def passes(seconds: float) -> StepCosts:
    """Costs of a draft model whose passes take this long."""
    costs = StepCosts()
    for _ in range(60):
        costs.observe(1, seconds)
    return costs


def test_depths_of_a_draft_model_are_worth_its_passes() -> None:
    sure, unsure, none = [0.9**i for i in range(1, 9)], [0.5**i for i in range(1, 4)], list[float]()
    verifying = taught(0.02)
    assert common_depths([sure], 63, verifying, StepCosts()) == [8], "no pass was seen: it may cost nothing"
    assert common_depths([sure], 63, verifying, passes(1.0)) == [0], "a pass takes as long as a step"
    depths = [common_depths([sure], 63, verifying, passes(s))[0] for s in (0.02, 0.1, 0.2, 0.4, 0.8)]
    assert depths == sorted(depths, reverse=True)
    assert 0 < depths[2] < depths[0]
    assert common_depths([sure, none, unsure], 63, verifying, passes(0.05))[1] == 0
    assert sum(common_depths([sure, sure], 5, verifying, passes(0.05))) == 4, "at most five, equally deep"
    assert common_depths([], 63, verifying, passes(0.05)) == []
    assert common_depths([sure] * 8, 63, taught(1.3), passes(0.02)) == [0] * 8, "rows are dear"


def test_a_draft_model_is_tried_again_after_it_was_wrong() -> None:
    speculator = ModelSpeculator(SpeculationConfig("draft_model", 4), SchedulerConfig(4096))
    seq = sequence([1, 2, 3], [4])

    def depth() -> int:
        return len(speculator.drafts([seq], 60, 1).get(seq, ()))

    def step(num_accepted: int) -> int:
        """Return the accepted drafts of one step."""
        placed = depth()
        found, passes = min(num_accepted, placed), (1, placed, 0.3 * placed) if placed else NO_PASSES
        speculator.observe(1 + placed, 1 + found, 1.0 + 0.3 * placed, passes)
        if placed:
            speculator.count(seq, placed, found)
        seq.token_ids.append(4)
        return found

    for _ in range(30):
        step(4)
    assert depth() == 4
    for _ in range(30):
        step(0)
    assert depth() == 0
    assert any([step(4) for _ in range(300)])
