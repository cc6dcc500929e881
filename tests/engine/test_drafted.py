"""Rows of drafts, and which tokens follow from what they sample."""

from __future__ import annotations

import statistics

import pytest

from neuronserve.server.config.speculation import SpeculationConfig
from neuronserve.server.engine.drafted import accepted_tokens, draft_rows, with_synthetic
from neuronserve.server.engine.grammar_masks import OFF_GRAMMAR
from neuronserve.server.types import SampledToken, SamplingParams, ScheduledSeq


def seq(drafts: tuple[int, ...], **sampling: float) -> ScheduledSeq:
    """A sequence with prompt 1, 2 that has generated 3."""
    params = SamplingParams(99, **sampling)  # type: ignore[arg-type]
    return ScheduledSeq("r", (3, *drafts), 2, (), True, params, [1, 2, 3], 2, num_drafts=len(drafts))


def test_a_row_knows_the_drafts_before_it_where_sampling_depends_on_them() -> None:
    rows, drawn = draft_rows([seq((4, 5), presence_penalty=1.0), seq(()), seq((6,))])
    assert drawn == [1, 2, 3, 1, 1, 2]
    assert [list(row.history) for row in rows[:4]] == [[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3]]
    assert [row.num_drafts for row in rows[:4]] == [0, 1, 2, 0]
    assert rows[4] is rows[5], "nothing but the number of its tokens is needed"


@pytest.mark.parametrize(
    ("sampled", "accepted"),
    [([4, 5, 7], [5, 7]), ([4, 6, 7], [6]), ([9, 5, 7], []), ([4, None, 7], [None]), ([4, "off", 7], [])],
)
def test_tokens_end_at_the_first_that_is_not_its_draft(sampled: list[int | str | None], accepted: list[int]) -> None:
    faults = {None: "not finite", "off": OFF_GRAMMAR}
    tokens = [SampledToken(each) if isinstance(each, int) else SampledToken(-1, error=faults[each]) for each in sampled]
    found = accepted_tokens(seq((4, 5)), tokens)
    assert [None if each.error else each.token_id for each in found] == accepted


@pytest.mark.parametrize("length", [1.0, 2.5, 6.0])
def test_a_synthetic_acceptance_has_the_chosen_mean_length(length: float) -> None:
    rate = SpeculationConfig("ngram", 7, synthetic_acceptance_length=length).acceptance_rate
    assert rate is not None
    lengths = []
    for seed in range(3000):
        one = seq((3,) * 7, seed=seed)
        tokens = with_synthetic(draft_rows([one], is_whole=True)[0], [SampledToken(3)] * 8, rate)
        lengths.append(1 + len(accepted_tokens(one, tokens)))
    assert statistics.fmean(lengths) == pytest.approx(length, rel=0.05)
