"""Neuron's way to fill steps, beside the continuous one: who goes first, alone, and in how many steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import bench, request

from server.config import Batching


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


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=6),
    num_blocks=st.integers(8, 30),
)
def test_both_ways_give_the_same_tokens(prompts: list[list[int]], num_blocks: int) -> None:
    tokens = []
    for batching in ("continuous", "neuron"):
        one = bench(num_blocks, batching=batching)
        one.add(*(request(f"r{i}", prompt, 5) for i, prompt in enumerate(prompts)))
        one.finish()
        tokens.append([one.tokens(f"r{i}") for i in range(len(prompts))])
    assert tokens[0] == tokens[1]
