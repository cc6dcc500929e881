"""Tenants take turns: the least served comes next, and none waits for another's long queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import Bench, bench, request

from neuronserve.server.kv_cache.hashing import HashChain
from neuronserve.server.kv_cache.sequence_blocks import SequenceBlocks
from neuronserve.server.scheduler import fair_queue
from neuronserve.server.scheduler.fair_queue import MAX_REMEMBERED, FairQueue
from neuronserve.server.scheduler.queue import OrderedQueue
from neuronserve.server.scheduler.sequence import Sequence
from neuronserve.server.types import Request


def of(tenant: str, request_id: str, prompt: list[int], max_tokens: int = 4, arrival_time: float = 0.0) -> Request:
    return replace(request(request_id, prompt, max_tokens, arrival_time=arrival_time), tenant=tenant)


def admitted(b: Bench) -> list[str]:
    return [request_id for plan in b.plans for request_id in plan.admitted]


def test_a_tenant_with_one_request_does_not_wait_for_anothers_hundred() -> None:
    b = bench(num_blocks=64, max_num_seqs=1)
    b.add(*[of("many", f"m{i:03}", [i % 10] * 8, arrival_time=i) for i in range(100)])
    b.step()
    b.add(of("few", "f", [1] * 8, arrival_time=1000.0))
    b.finish()
    assert admitted(b)[:3] == ["m000", "f", "m001"]


def test_turns_are_by_tokens_and_not_by_requests() -> None:
    b = bench(num_blocks=64, max_num_seqs=1, max_num_batched_tokens=64, enable_prefix_caching=False)
    b.add(*[of("long", f"l{i}", [i] * 30, 2, arrival_time=i) for i in range(3)])
    b.add(*[of("short", f"s{i}", [i] * 6, 2, arrival_time=i) for i in range(9)])
    b.finish()
    order = admitted(b)
    assert order[0] == "l0"
    assert order[1:5] == ["s0", "s1", "s2", "s3"]  # 4 x 8 tokens for the 32 of l0
    assert order[5] == "l1"


@pytest.mark.parametrize(("saved", "first"), [(0, {"n": 3, "b": 3}), (20, {"n": 4, "b": 2})])
def test_who_was_away_has_saved_up_a_few_turns(
    saved: int, first: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_queue, "SAVED_TOKENS", saved)
    b = bench(num_blocks=64, max_num_seqs=1, enable_prefix_caching=False)
    b.add(*[of("busy", f"a{i}", [i] * 8, arrival_time=i) for i in range(5)])
    b.finish()
    b.add(*[of("new", f"n{i}", [i] * 8, arrival_time=100 + i) for i in range(5)])
    b.add(*[of("busy", f"b{i}", [i] * 8, arrival_time=100 + i) for i in range(5)])
    b.finish()
    order = admitted(b)[5:]
    assert Counter(request_id[0] for request_id in order[:6]) == first


def test_a_better_priority_comes_before_any_turn() -> None:
    b = bench(num_blocks=64, max_num_seqs=1)
    b.add(*[of("a", f"a{i}", [i] * 8, arrival_time=i) for i in range(3)], of("b", "b0", [1] * 8))
    b.add(replace(of("a", "urgent", [2] * 8), priority=-1))
    b.finish()
    assert admitted(b)[0] == "urgent"


Rows = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 12), st.integers(1, 6)), min_size=1, max_size=24)


@given(Rows, st.integers(1, 4))
def test_two_that_always_wait_get_the_same_but_for_what_runs(rows: list[tuple[str, int, int]], slots: int) -> None:
    b = bench(num_blocks=200, max_num_seqs=slots, max_num_batched_tokens=64, enable_prefix_caching=False)
    made = [
        of(tenant, f"{tenant}{i}", [i % 10] * length, out, arrival_time=i)
        for i, (tenant, length, out) in enumerate(rows)
    ]
    b.add(*made)
    waiting = Counter(each.tenant for each in made)
    served = Counter[str]()
    largest = max(length + out for _, length, out in rows)
    while b.scheduler.has_work:
        plan = b.step()
        for each in plan.admitted:
            waiting[each[0]] -= 1
        served.update({"a": 0, "b": 0})
        for seq in plan.seqs:
            served[seq.request_id[0]] += len(seq.token_ids)
        if waiting["a"] and waiting["b"]:
            assert abs(served["a"] - served["b"]) <= (slots + 1) * largest
    for each in made:
        assert b.tokens(each.request_id) == b.expected(each.request_id)


def sequence(tenant: str, request_id: str, arrival_time: float = 0.0) -> Sequence:
    return of_request(of(tenant, request_id, [1], arrival_time=arrival_time))


def of_request(one: Request) -> Sequence:
    return Sequence(one, SequenceBlocks(HashChain(4, ""), num_groups=1))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.sampled_from(["", "t"]))
def test_one_tenant_waits_in_order_of_service(rows: list[tuple[int, bool]], tenant: str) -> None:
    fair, ordered = FairQueue(), OrderedQueue()
    for i, (arrival_time, is_add) in enumerate(rows):
        if is_add or not ordered:
            seq = sequence(tenant, f"r{i}", arrival_time)
            fair.add(seq)
            ordered.add(seq)
        else:
            assert fair.first is ordered.first
            fair.serve(fair.first, 1 + i)
            fair.remove(ordered.first)
            ordered.remove(ordered.first)
        assert (list(fair), len(fair), bool(fair)) == (list(ordered), len(ordered), bool(len(ordered)))
        assert not fair.takes_turns


def test_counters_are_bounded() -> None:
    queue = FairQueue()
    for i in range(MAX_REMEMBERED + 100):
        seq = sequence(f"t{i}", f"r{i}")
        queue.add(seq)
        queue.remove(seq)
    assert len(queue._served) <= MAX_REMEMBERED


@given(st.lists(st.tuples(st.integers(-1, 1), st.sampled_from([3.0, 5.0, 9.0, inf])), min_size=1, max_size=12))
def test_who_is_due_comes_before_the_more_urgent_and_before_turns(rows: list[tuple[int, float]]) -> None:
    fair, waiting = FairQueue(), dict[str, Request]()
    for i, (priority, due_time) in enumerate(rows):
        one = replace(of("", f"r{i:02}", [1], arrival_time=i), priority=priority, due_time=due_time)
        waiting[one.request_id] = one
        fair.add(of_request(one))
    for now in range(len(rows)):
        fair.at(float(now))
        due = [(one.due_time, one.priority, name) for name, one in waiting.items() if one.due_time <= now]
        *_, expected = min(due or [(inf, one.priority, name) for name, one in waiting.items()])
        assert fair.first.request.request_id == expected
        fair.remove(fair.first)
        del waiting[expected]


def test_with_a_first_token_a_promise_is_kept_and_it_is_passed_again() -> None:
    """Else those who lose their places to the urgent would take them back in the next step."""
    fair = FairQueue()
    due = of_request(replace(of("", "due", [1]), priority=5, due_time=1.0))
    urgent = of_request(replace(of("", "urgent", [1]), priority=0))
    due.token_ids.append(7)
    fair.add(due)
    fair.add(urgent)
    fair.at(2.0)
    assert fair.first is urgent
    fair.remove(due)
    assert list(fair) == [urgent]
