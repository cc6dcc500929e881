"""The ways to fill steps: who goes first, alone, in how many steps, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import Bench, bench, request

from neuronserve.server.config.formats import Batching
from neuronserve.server.scheduler.batching import POLICIES
from neuronserve.server.types import StepPlan


def shapes(batching: Batching, chunk: int | None = None) -> list[tuple[int, int]]:
    """(prompt tokens, decodes) of each step of three requests, two of which come a step later."""
    one = bench(num_blocks=100, max_num_batched_tokens=64, batching=batching, max_prompt_chunk=chunk)
    one.add(request("a", [1] * 6, 3, cache_salt="a"))
    one.step()
    one.add(request("b", [2] * 5, 3, cache_salt="b"), request("c", [3] * 4, 3, cache_salt="c"))
    one.finish()
    return [(sum(len(seq.token_ids) for seq in plan.prefill), len(plan.decode)) for plan in one.plans]


def test_continuous_batching_puts_prompts_beside_decodes() -> None:
    assert shapes("continuous") == [(6, 0), (9, 1), (0, 3), (0, 2)]


def test_neuron_encodes_one_prompt_a_step_and_then_decodes_all() -> None:
    assert shapes("neuron") == [(6, 0), (5, 0), (4, 0), (0, 3), (0, 3)]


def test_a_prompt_longer_than_the_longest_bucket_takes_several_steps_that_nobody_shares() -> None:
    assert shapes("neuron", chunk=4) == [(4, 0), (2, 0), (4, 0), (1, 0), (4, 0), (0, 3), (0, 3)]


def test_with_all_slots_taken_a_waiting_prompt_lets_the_others_decode() -> None:
    one = bench(num_blocks=100, max_num_seqs=2, batching="neuron")
    one.add(*(request(name, [1, 2], 3, cache_salt=name) for name in "abc"))
    one.finish()
    assert [(len(plan.prefill), len(plan.decode)) for plan in one.plans] == [
        *[(1, 0), (1, 0), (0, 2), (0, 2)],
        *[(1, 0), (0, 1), (0, 1)],
    ]


def test_the_budget_bounds_a_prompt_step_too() -> None:
    one = bench(num_blocks=100, max_num_batched_tokens=4, batching="neuron")
    one.add(request("a", [1] * 10, 1))
    one.finish()
    assert [plan.num_tokens for plan in one.plans] == [4, 4, 2]


def test_a_preempted_sequence_comes_back_in_a_step_of_its_own() -> None:
    one = bench(num_blocks=7, block_size=2, max_num_seqs=2, batching="neuron", enable_prefix_caching=False)
    one.add(request("a", [1] * 4, 6), request("b", [2] * 4, 6))
    one.finish()
    assert any(plan.preempted for plan in one.plans)
    assert one.tokens("b") == one.expected("b")


def test_tgi_encodes_all_that_wait_in_one_step() -> None:
    assert shapes("tgi") == [(6, 0), (9, 0), (0, 3), (0, 3)]


def test_a_static_batch_ends_before_the_next_begins() -> None:
    assert shapes("static") == [(6, 0), (0, 1), (0, 1), (9, 0), (0, 2), (0, 2)]


@pytest.mark.parametrize(("num_waiting", "steps"), [(1, 20), (2, 20), (3, 0)])
def test_tgi_lets_prompts_wait_for_company_or_for_twenty_steps(num_waiting: int, steps: int) -> None:
    """Check that three waiting prompts are enough for ten decoding sequences."""
    one = bench(num_blocks=400, max_num_seqs=16, max_num_batched_tokens=64, batching="tgi")
    one.add(*(request(f"a{i}", [i] * 3, 40) for i in range(10)))
    one.step()
    one.add(*(request(f"b{i}", [i] * 4, 2) for i in range(num_waiting)))
    plans = [one.step() for _ in range(steps + 1)]
    assert [len(plan.prefill) for plan in plans] == [0] * steps + [num_waiting]
    one.finish()


Arrival = tuple[int, int, int]  # steps after the one before, prompt, output
arrivals = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=14)


def served(batching: Batching, load: list[Arrival], num_slots: int) -> Iterator[tuple[Bench, StepPlan, int]]:
    """Each step of requests that come while others are served, with how many waited before it; blocks for all."""
    one = bench(400, max_num_seqs=num_slots, max_num_batched_tokens=64, batching=batching)
    queue = [request(f"r{i:02}", [1] * prompt, output, cache_salt=f"{i}") for i, (_, prompt, output) in enumerate(load)]
    for (pause, _, _), each in zip(load, queue, strict=True):
        for _ in range(pause):
            if one.scheduler.has_work:
                waiting = one.scheduler.num_waiting
                yield one, one.step(), waiting
        one.add(each)
    while one.scheduler.has_work:
        waiting = one.scheduler.num_waiting
        yield one, one.step(), waiting


@given(load=arrivals, num_slots=st.integers(1, 12))
def test_tgi_starves_nobody_for_whom_there_is_a_slot(load: list[Arrival], num_slots: int) -> None:
    waited, most, busy = 0, int(POLICIES["tgi"].max_waiting_steps), 0
    for one, plan, waiting in served("tgi", load, num_slots):
        waited = waited + 1 if waiting and busy < num_slots and not plan.prefill else 0
        assert waited <= most
        busy = one.scheduler.num_running


@given(load=arrivals, num_slots=st.integers(1, 6))
def test_nobody_joins_a_static_batch(load: list[Arrival], num_slots: int) -> None:
    busy = 0
    for one, plan, waiting in served("static", load, num_slots):
        assert bool(plan.prefill) == (busy == 0)
        if plan.prefill:
            assert len(plan.prefill) == min(waiting, num_slots)  # of at most 9 tokens: the budget holds all
        busy = one.scheduler.num_running


@given(load=arrivals, num_slots=st.integers(1, 6), batching=st.sampled_from(list(POLICIES)))
def test_no_request_is_lost_under_any_policy(load: list[Arrival], num_slots: int, batching: Batching) -> None:
    *_, (one, _, _) = served(batching, load, num_slots)
    assert [one.tokens(name) for name in one.requests] == [one.expected(name) for name in one.requests]
    assert one.cache.num_free_blocks == one.cache.config.num_blocks - 1


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=6),
    num_blocks=st.integers(8, 30),
)
def test_all_ways_give_the_same_tokens(prompts: list[list[int]], num_blocks: int) -> None:
    tokens = []
    for batching in POLICIES:
        one = bench(num_blocks, batching=batching)
        one.add(*(request(f"r{i}", prompt, 5) for i, prompt in enumerate(prompts)))
        one.finish()
        tokens.append([one.tokens(f"r{i}") for i in range(len(prompts))])
    assert all(those == tokens[0] for those in tokens)


def test_what_a_dead_engine_had_computed_is_computed_again_before_others_decode_but_in_one_step_of_nine() -> None:
    one = bench(num_blocks=400, max_num_seqs=10, max_num_batched_tokens=10)
    one.add(*(request(f"a{i}", [i] * 8, 40, generated_token_ids=(5,) * 12, cache_salt=str(i)) for i in range(10)))
    plans = []
    while one.scheduler.has_work and (not plans or plans[-1].prefill):
        plans.append(one.scheduler.schedule(0.0))
        one.scheduler.apply(plans[-1], one.runner.execute(plans[-1]), 0.0)
    assert [len(plan.decode) for plan in plans[:18]] == [0] * 8 + [4] + [0] * 8 + [8]
    assert len(plans[-1].decode) == 10
    assert plans[-1].prefill == ()


def test_nobody_waits_for_a_sequence_of_a_dead_engine_that_has_no_room() -> None:
    one = bench(num_blocks=8, block_size=2, enable_prefix_caching=False)
    one.add(request("a", [1] * 4, 8), request("b", [2] * 6, 8, generated_token_ids=(5,) * 4, arrival_time=1.0))
    plan = one.scheduler.schedule(0.0)
    one.scheduler.apply(plan, one.runner.execute(plan), 0.0)
    assert [seq.request_id for seq in plan.prefill] == ["a"]
    plan = one.scheduler.schedule(0.0)
    assert ([seq.request_id for seq in plan.prefill], [seq.request_id for seq in plan.decode]) == ([], ["a"])
