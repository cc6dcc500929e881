"""Order of texts: whole, by priority, fairly among requests, within the limits of a step."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.config import CacheConfig, PoolingLimits, SchedulerConfig
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.pooling import PoolingScheduler
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.scheduler.shared import SharedScheduler
from neuronserve.server.types import (
    PoolingParams,
    Request,
    SampledToken,
    SamplingParams,
    StepPlan,
    StepResult,
    TokenEvent,
)

LIMITS = PoolingLimits(max_num_texts=4, max_num_tokens=32, max_length=20)


def text(request_id: str, num_tokens: int, group: str = "", priority: int = 0) -> Request:
    pooling = PoolingParams(group=group)
    ids = tuple(range(num_tokens))
    return Request(request_id, ids, SamplingParams(max_tokens=0), 0.0, priority=priority, pooling=pooling)


def computed(plan: StepPlan) -> StepResult:
    rows = {seq.request_id: bytes([len(seq.token_ids)]) for seq in plan.prefill if seq.pooling is not None}
    sampled = {seq.request_id: SampledToken(1) for seq in plan.seqs if seq.needs_sample}
    return StepResult(plan.step_id, sampled, 0.0, rows=rows)


def turn(scheduler: PoolingScheduler | SharedScheduler) -> tuple[StepPlan, list[TokenEvent]]:
    plan = scheduler.schedule(0.0)
    return plan, scheduler.apply(plan, computed(plan), 0.0)


def order(scheduler: PoolingScheduler) -> list[str]:
    """Ids in the order of their steps."""
    found = []
    while scheduler.has_work:
        found += [seq.request_id for seq in turn(scheduler)[0].prefill]
    return found


class Arrival(NamedTuple):
    num_tokens: int
    group: int
    priority: int
    steps_before: int
    is_aborted: bool


ARRIVALS = st.lists(
    st.builds(Arrival, st.integers(1, 20), st.integers(0, 3), st.integers(-1, 1), st.integers(0, 2), st.booleans()),
    max_size=30,
)


@given(ARRIVALS)
def test_every_text_ends_once_and_no_step_is_too_large(arrivals: list[Arrival]) -> None:
    scheduler, ended, lengths = PoolingScheduler(LIMITS), Counter[str](), dict[str, int]()

    def take(events: list[TokenEvent]) -> None:
        ended.update(event.request_id for event in events)

    def step() -> None:
        plan, events = turn(scheduler)
        assert len(plan.prefill) <= LIMITS.max_num_texts
        assert plan.num_tokens <= LIMITS.max_num_tokens
        assert [event.row for event in events] == [bytes([lengths[event.request_id]]) for event in events]
        assert {event.finish_reason for event in events} <= {"stop"}
        take(events)

    for i, each in enumerate(arrivals):
        for _ in range(each.steps_before):
            step()
        lengths[str(i)] = each.num_tokens
        scheduler.add(text(str(i), each.num_tokens, str(each.group), each.priority))
        if each.is_aborted and (event := scheduler.abort(str(i // 2), 0.0)) is not None:
            assert event.finish_reason == "abort"
            take([event])
    steps = 0
    while scheduler.has_work:
        step()
        steps += 1
    assert steps <= len(arrivals)
    assert ended == Counter(lengths.keys())
    assert scheduler.num_waiting == 0
    assert scheduler.open_ids == ()


@given(ARRIVALS)
def test_texts_of_a_request_keep_their_order(arrivals: list[Arrival]) -> None:
    scheduler = PoolingScheduler(LIMITS)
    for i, each in enumerate(arrivals):
        scheduler.add(text(f"{each.group}-{i}", each.num_tokens, str(each.group)))
    found = order(scheduler)
    for group in range(4):
        numbers = [int(name.partition("-")[2]) for name in found if name.startswith(f"{group}-")]
        assert numbers == sorted(numbers)


def test_one_text_does_not_wait_for_the_many_of_another_request() -> None:
    scheduler = PoolingScheduler(LIMITS)
    for i in range(200):
        scheduler.add(text(f"many-{i}", 8, "many"))
    turn(scheduler)
    scheduler.add(text("one", 8, "one"))
    plan, _ = turn(scheduler)
    assert "one" in [seq.request_id for seq in plan.prefill]


def test_two_long_requests_share_tokens_evenly() -> None:
    scheduler = PoolingScheduler(LIMITS)
    for i in range(60):
        scheduler.add(text(f"a-{i}", 8, "a"))
    for i in range(60):
        scheduler.add(text(f"b-{i}", 4, "b"))
    found = order(scheduler)[:60]
    tokens = {"a": 8 * sum(name[0] == "a" for name in found), "b": 4 * sum(name[0] == "b" for name in found)}
    assert abs(tokens["a"] - tokens["b"]) <= 8


def test_priority_comes_before_fairness() -> None:
    scheduler = PoolingScheduler(LIMITS)
    for i in range(20):
        scheduler.add(text(f"late-{i}", 8, "late", priority=1))
    for i in range(9):
        scheduler.add(text(f"first-{i}", 8, "first", priority=-1))
    assert order(scheduler)[:9] == [f"first-{i}" for i in range(9)]


def test_a_text_whose_states_are_not_finite_ends_alone() -> None:
    scheduler = PoolingScheduler(LIMITS)
    for name in ("good", "bad"):
        scheduler.add(text(name, 3))
    plan = scheduler.schedule(0.0)
    events = scheduler.apply(plan, StepResult(plan.step_id, {}, 0.0, rows={"good": b"1234"}), 0.0)
    assert [(event.request_id, event.finish_reason, event.row) for event in events] == [
        ("good", "stop", b"1234"),
        ("bad", "error", None),
    ]
    assert not scheduler.has_work


@pytest.mark.parametrize("num_tokens", [0, 21])
def test_a_text_that_no_step_has_room_for_is_our_own_mistake(num_tokens: int) -> None:
    with pytest.raises(ValueError, match="1 to 20 fit"):
        PoolingScheduler(LIMITS).add(text("a", num_tokens))


def shared() -> SharedScheduler:
    cache = KVCacheManager(CacheConfig(num_blocks=20, block_size=4))
    return SharedScheduler(Scheduler(SchedulerConfig(64, 4, 16), cache), PoolingScheduler(LIMITS))


def test_generation_and_texts_take_turns() -> None:
    scheduler = shared()
    scheduler.add(Request("tokens", (1, 2, 3), SamplingParams(max_tokens=8, ignore_eos=True), 0.0))
    for i in range(12):
        scheduler.add(text(f"text-{i}", 8))
    kinds = []
    ended = []
    while scheduler.has_work:
        plan, events = turn(scheduler)
        kinds.append(plan.is_pooled)
        ended += [event.request_id for event in events if event.finish_reason is not None]
    assert kinds[:6] == [True, False] * 3
    assert kinds[6:] == [False] * 5
    assert sorted(ended) == sorted(["tokens", *(f"text-{i}" for i in range(12))])


def test_either_kind_is_aborted_where_it_is() -> None:
    scheduler = shared()
    scheduler.add(Request("tokens", (1, 2, 3), SamplingParams(max_tokens=8), 0.0))
    scheduler.add(text("text", 8))
    assert scheduler.open_ids == ("tokens", "text")
    for name in ("tokens", "text"):
        event = scheduler.abort(name, 0.0)
        assert event is not None
        assert event.finish_reason == "abort"
        assert scheduler.abort(name, 0.0) is None
    assert not scheduler.has_work


def test_a_step_follows_another_one_where_something_was_left() -> None:
    """Check that pacing counts no pause between steps of texts, although none runs between them."""
    scheduler = PoolingScheduler(LIMITS)
    for i in range(6):
        scheduler.add(text(str(i), 8))
    assert [turn(scheduler)[0].follows for _ in range(2)] == [False, True]
    scheduler.add(text("later", 8))
    assert not turn(scheduler)[0].follows
