"""The scheduler's decisions, one at a time."""

from __future__ import annotations

import pytest
from scheduler_harness import VOCAB, bench, request

from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.engine.fake_runner import expected_tokens
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import ScheduledSeq, StepPlan


def ids(seqs: tuple[ScheduledSeq, ...]) -> list[str]:
    return [seq.request_id for seq in seqs]


def sizes(plan: StepPlan) -> dict[str, int]:
    return {seq.request_id: len(seq.token_ids) for seq in plan.seqs}


def test_a_long_prompt_is_computed_in_chunks_and_sampled_after_the_last() -> None:
    b = bench(max_num_batched_tokens=8)
    b.add(request("long", [1] * 20))
    chunks = [b.step().prefill[0] for _ in range(3)]
    assert [(c.start, len(c.token_ids), c.needs_sample) for c in chunks] == [
        (0, 8, False),
        (8, 8, False),
        (16, 4, True),
    ]
    assert len(b.tokens("long")) == 1
    assert ids(b.step().decode) == ["long"]


def test_decode_comes_before_the_chunks_of_earlier_prompts() -> None:
    b = bench(max_num_batched_tokens=8)
    b.add(request("short", [1, 2], arrival_time=2.0))
    b.step()
    b.add(request("long", [3] * 20, arrival_time=1.0))
    plan = b.step()
    assert sizes(plan) == {"short": 1, "long": 7}
    assert ids(plan.decode) == ["short"]


def test_what_the_running_leave_of_the_budget_starts_the_waiting() -> None:
    b = bench(max_num_batched_tokens=8)
    b.add(*[request(name, [ord(name)] * 5) for name in "abc"])
    assert sizes(b.step()) == {"a": 5, "b": 3}
    assert sizes(b.step()) == {"a": 1, "b": 2, "c": 5}


def test_a_sequence_is_told_as_admitted_once_and_as_preempted_each_time() -> None:
    b = bench(num_blocks=6, max_num_seqs=2, enable_prefix_caching=False)
    b.add(request("a", [1] * 6, 12), request("b", [2] * 6, 12))
    b.finish()
    steps = [(plan.admitted, plan.preempted, plan.time) for plan in b.plans]
    assert [ids for ids, _, _ in steps if ids] == [("a", "b")]
    assert [ids for _, ids, _ in steps if ids] == [("b",)]
    assert [time for _, _, time in steps] == [float(i + 1) for i in range(len(steps))]


def test_no_more_than_max_num_seqs_run() -> None:
    b = bench(max_num_seqs=2)
    b.add(*[request(name, [1]) for name in "abc"])
    b.step()
    assert (b.scheduler.num_running, b.scheduler.num_waiting) == (2, 1)


def test_lower_priority_values_run_first_then_earlier_arrivals_then_smaller_ids() -> None:
    b = bench(max_num_seqs=1)
    b.add(
        request("b", [1], 1, arrival_time=1.0),
        request("a", [1], 1, arrival_time=1.0),
        request("early", [1], 1, arrival_time=0.0),
        request("urgent", [1], 1, arrival_time=9.0, priority=-1),
    )
    b.finish()
    assert [ids(plan.seqs) for plan in b.plans] == [["urgent"], ["early"], ["a"], ["b"]]


def test_a_prompt_that_does_not_fit_whole_is_not_admitted_half_way_and_nobody_overtakes_it() -> None:
    b = bench(num_blocks=9, max_num_batched_tokens=8)
    b.add(request("a", [1] * 16, 8), request("big", [2] * 20), request("small", [3]))
    b.step()
    assert b.scheduler.running_ids == ("a",)
    assert b.cache.num_free_blocks == 4
    b.finish()
    started = [next(i for i, plan in enumerate(b.plans) if name in ids(plan.seqs)) for name in ("a", "big", "small")]
    assert started == sorted(started)


def test_admission_leaves_a_free_block_for_each_that_runs() -> None:
    b = bench(num_blocks=7, max_num_batched_tokens=32)
    b.add(request("a", [1] * 8), request("b", [2] * 16))
    assert ids(b.step().seqs) == ["a"]  # b's four blocks are there, but then a could not grow
    b.add(request("c", [3] * 8, arrival_time=-1.0))
    assert ids(b.step().seqs) == ["c", "a"]


def test_only_the_tail_is_preempted_and_it_comes_back_first_with_its_tokens() -> None:
    b = bench(num_blocks=9, max_num_seqs=3, enable_prefix_caching=False)
    b.add(*[request(name, [i] * 7, 12, arrival_time=float(i)) for i, name in enumerate("abc")])
    b.step()
    b.add(request("d", [9], arrival_time=9.0))
    while not b.plans[-1].preempted:
        plan = b.step()
    assert plan.preempted == ("c",)
    assert ids(plan.decode) == ["a", "b"]
    kept = b.tokens("c")
    while "c" not in ids(plan.seqs):
        assert "d" not in ids(plan.seqs)
        plan = b.step()
    again = next(seq for seq in plan.seqs if seq.request_id == "c")
    assert (again.start, list(again.token_ids)) == (0, [2] * 7 + kept)
    b.finish()
    assert all(b.tokens(name) == b.expected(name) for name in "abcd")


def test_a_preempted_sequence_finds_its_own_blocks_in_the_cache() -> None:
    b = bench(num_blocks=6, max_num_seqs=2)
    b.add(request("a", [1] * 7, 9), request("b", [2] * 7, 9, arrival_time=1.0))
    while not b.plans or not b.plans[-1].preempted:
        plan = b.step()
    while "b" not in ids(plan.seqs):
        plan = b.step()
    assert plan.prefill[0].start > 0
    # The client's usage speaks of its prompt at its first admission, and so do the counters.
    b.finish()
    assert b.events["b"][-1].num_cached_tokens == 0
    assert (b.cache.prefix_queries, b.cache.prefix_hits) == (14, 0)


def test_a_prefix_hit_skips_what_is_cached_and_is_told_in_every_event() -> None:
    b = bench()
    b.add(request("first", [1] * 10))
    b.finish()
    b.add(request("second", [1] * 10))
    assert b.step().prefill[0].start == 9
    b.finish()
    assert {event.num_cached_tokens for event in b.events["second"]} == {9}
    assert (b.cache.prefix_queries, b.cache.prefix_hits) == (20, 9)
    assert b.tokens("first") == b.tokens("second")


def test_a_common_prompt_that_comes_at_once_is_computed_once() -> None:
    b = bench(max_num_batched_tokens=64)
    b.add(*[request(name, [1] * 18) for name in "abcd"])
    assert ids(b.step().seqs) == ["a"]
    assert sizes(b.step()) == {"a": 1, "b": 2, "c": 2, "d": 2}
    b.finish()
    assert all(b.tokens(name) == b.expected(name) for name in "abcd")
    assert (b.cache.prefix_queries, b.cache.prefix_hits) == (4 * 18, 3 * 16)


def test_a_prompt_waits_for_another_only_until_they_part() -> None:
    b = bench(max_num_batched_tokens=10)
    b.add(request("long", [1] * 36), request("parts", [1] * 8 + [2] * 4, arrival_time=1.0))
    plan = b.step()
    while "parts" not in b.scheduler.running_ids:
        plan = b.step()
    assert [seq.start for seq in plan.prefill if seq.request_id == "parts"] == [8]
    assert "long" in ids(plan.prefill)


def test_without_prefix_caching_equal_prompts_do_not_wait_for_each_other() -> None:
    b = bench(max_num_batched_tokens=64, enable_prefix_caching=False)
    b.add(*[request(name, [1] * 10) for name in "ab"])
    assert sizes(b.step()) == {"a": 10, "b": 10}


def test_one_that_waits_for_a_prefix_goes_on_when_its_maker_is_aborted() -> None:
    b = bench(max_num_batched_tokens=8)
    b.add(request("maker", [1] * 20), request("waits", [1] * 20, arrival_time=1.0))
    b.step()
    b.abort("maker")
    assert b.step().prefill[0].start == 8
    b.finish()
    assert b.tokens("waits") == b.expected("waits")


def test_nobody_waits_for_a_prefix_that_was_computed_and_then_forgotten() -> None:
    b = bench()
    b.add(request("first", [1] * 10, 9))
    b.step()
    b.scheduler.reset_prefix_cache()
    b.add(request("second", [1] * 10))
    assert sizes(b.step()) == {"first": 1, "second": 10}


def test_a_sequence_that_alone_outgrows_the_cache_ends_with_length() -> None:
    b = bench(num_blocks=3)
    b.add(request("r", [1] * 5, 50))
    b.finish()
    assert b.reason("r") == "length"
    assert b.tokens("r") == b.expected("r")[:4]  # eight positions, and the last token needs none


def test_a_prompt_larger_than_the_cache_ends_with_length_and_delays_nobody() -> None:
    b = bench(num_blocks=3)
    b.add(request("huge", [1] * 9), request("ok", [2], arrival_time=1.0))
    assert ids(b.step().seqs) == ["ok"]
    assert b.reason("huge") == "length"


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_abort_ends_a_request_waiting_in_prefill_or_in_decode(num_steps: int) -> None:
    b = bench(max_num_batched_tokens=4)
    b.add(request("r", [1] * 8))
    for _ in range(num_steps):
        b.step()
    generated = len(b.tokens("r"))
    event = b.abort("r")
    assert event is not None
    assert (event.finish_reason, event.token_id, event.index) == ("abort", None, generated)
    assert not b.scheduler.has_work
    assert b.cache.usage == 0
    assert b.abort("r") is None
    assert b.abort("unknown") is None


def test_what_a_prompt_aborted_half_way_leaves_in_the_cache_is_only_what_was_computed() -> None:
    b = bench(max_num_batched_tokens=9)
    b.add(request("gone", [1] * 20))
    b.step()
    b.abort("gone")
    b.add(request("r", [1] * 20))
    assert b.step().prefill[0].start == 8
    b.finish()
    assert b.tokens("r") == b.expected("r")


def test_a_full_context_ends_with_length_before_max_tokens() -> None:
    b = bench(max_model_len=10)
    b.add(request("r", [1] * 7, 50))
    b.finish()
    assert (len(b.tokens("r")), b.reason("r")) == (3, "length")


def test_a_sampling_error_ends_one_request_and_nothing_it_computed_is_found_again() -> None:
    b = bench()
    b.broken = {"bad"}
    b.add(request("bad", [1] * 9), request("good", [2] * 9))
    b.step()
    assert b.events["bad"][0].error == "not finite"
    assert b.reason("bad") == "error"
    b.finish()
    assert b.tokens("good") == b.expected("good")
    b.add(request("again", [1] * 9))
    assert b.step().prefill[0].start == 0


def test_events_carry_the_stop_token_and_the_logprobs() -> None:
    b = bench()
    stopper = expected_tokens([1, 2, 3], 3, VOCAB)[2]
    b.add(request("r", [1, 2, 3], 9, stop_token_ids=(stopper,), min_tokens=3, logprobs=2))
    b.finish()
    last = b.events["r"][-1]
    assert (last.token_id, last.finish_reason, last.stop_reason, last.index) == (stopper, "stop", stopper, 2)
    assert last.logprobs is not None
    assert last.logprobs.top_token_ids[0] == stopper


def test_a_queue_that_cannot_move_is_not_looked_up_again_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench(num_blocks=9)
    b.add(request("runs", [1] * 16, 16), request("waits", [2] * 24))
    b.step()
    looked = 0
    lookup = b.cache.lookup

    def counting(*args: object) -> list[int]:
        nonlocal looked
        looked += 1
        return lookup(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(b.cache, "lookup", counting)
    for _ in range(8):
        b.step()
    assert looked <= 2  # once for each block that "runs" fills


def test_what_would_break_the_books_is_refused() -> None:
    b = bench()
    b.add(request("r", [1]))
    with pytest.raises(ValueError, match="r is open already"):
        b.scheduler.add(request("r", [1]))
    with pytest.raises(ValueError, match="empty prompt"):
        b.scheduler.add(request("empty", []))
    plan = b.step()
    with pytest.raises(AssertionError, match="in order"):
        b.scheduler.apply(StepPlan(plan.step_id + 1, (), ()), b.runner.execute(plan), 0.0)


def test_a_budget_that_cannot_serve_every_running_sequence_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(3\) must be at least max_num_seqs \(4\)"):
        Scheduler(SchedulerConfig(64, 4, 3), KVCacheManager(CacheConfig(4)))
