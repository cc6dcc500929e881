"""The fake runner notices every kind of wrong KV."""

from __future__ import annotations

import pytest

from neuronserve.server.config import CacheConfig
from neuronserve.server.engine.fake_runner import FakeRunner, expected_tokens
from neuronserve.server.types import SamplingParams, ScheduledSeq, StepPlan

CACHE = CacheConfig(num_blocks=6, block_size=2)
PROMPT = [5, 6, 7, 8, 9]
VOCAB = 1_000_003


def seq(tokens: list[int], start: int, table: list[int], history: list[int] = PROMPT) -> ScheduledSeq:
    params = SamplingParams(max_tokens=9)
    is_last = start + len(tokens) == len(history)
    return ScheduledSeq("r", tuple(tokens), start, (table,), is_last, params, history, len(PROMPT))


def run(runner: FakeRunner, *seqs: ScheduledSeq) -> int | None:
    sampled = runner.execute(StepPlan(1, seqs, ())).sampled
    return sampled["r"].token_id if "r" in sampled else None


def test_it_generates_what_the_pure_function_says_in_any_chunking_and_any_blocks() -> None:
    expected = expected_tokens(PROMPT, 3, VOCAB)
    for split in range(1, len(PROMPT)):
        runner, table, known = FakeRunner(CACHE, VOCAB), [4, 2, 5, 1], list(PROMPT)
        run(runner, seq(PROMPT[:split], 0, table))
        known.append(run(runner, seq(PROMPT[split:], split, table)) or 0)
        for _ in range(2):
            known.append(run(runner, seq([known[-1]], len(known) - 1, table, known)) or 0)
        assert known[len(PROMPT) :] == expected


def test_every_token_of_the_prefix_matters() -> None:
    expected = expected_tokens(PROMPT, 1, VOCAB)
    for i in range(len(PROMPT)):
        assert expected_tokens([*PROMPT[:i], 99, *PROMPT[i + 1 :]], 1, VOCAB) != expected


@pytest.mark.parametrize("table", [[1, 2, 3], [4, 2, 3], [1, 4, 3], [1, 2, 4], [2, 1, 3]])
def test_a_wrong_block_anywhere_in_the_table_changes_the_token(table: list[int]) -> None:
    runner, known = FakeRunner(CACHE, VOCAB), [*PROMPT, 1]
    run(runner, seq([1, 2], 0, [4])._replace(request_id="other"))
    run(runner, seq(PROMPT, 0, [1, 2, 3]))
    token_id = run(runner, seq([1], len(PROMPT), table, known))
    assert (token_id == expected_tokens(known, 1, VOCAB)[0]) == (table == [1, 2, 3])


def test_a_slot_that_nobody_wrote_is_not_read() -> None:
    with pytest.raises(LookupError, match="position 3 of group 0 was never written"):
        run(FakeRunner(CACHE, VOCAB), seq(PROMPT[4:], 4, [1, 2, 3]))


def test_the_null_block_is_never_used() -> None:
    with pytest.raises(AssertionError, match="null block"):
        run(FakeRunner(CACHE, VOCAB), seq(PROMPT, 0, [1, 0, 3]))


def test_logprobs_are_of_the_sampled_token_and_of_as_many_as_were_asked_for() -> None:
    runner = FakeRunner(CACHE, VOCAB)
    asked = seq(PROMPT, 0, [1, 2, 3])._replace(sampling=SamplingParams(max_tokens=1, logprobs=3))
    sampled = runner.execute(StepPlan(1, (asked,), ())).sampled["r"]
    assert sampled.logprobs is not None
    assert len(sampled.logprobs.top_token_ids) == len(sampled.logprobs.top_logprobs) == 3
    assert sampled.logprobs.top_token_ids[0] == sampled.token_id
    assert sampled.logprobs.top_logprobs[0] == sampled.logprobs.sampled
