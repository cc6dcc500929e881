"""Equal decode steps in one go leave what they leave one by one: every block, digest, token, place in the free list."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from scheduler_harness import FULL, GROUPS, request

from neuronserve.planner.simulate.decode_run import RunScheduler
from neuronserve.server.config import AttentionSpan, CacheConfig, SchedulerConfig
from neuronserve.server.errors import InvalidRequest
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.admission import resolve_max_tokens
from neuronserve.server.scheduler.batching import POLICIES
from neuronserve.server.types import Request, SampledToken, StepPlan, StepResult

MAX_MODEL_LEN = 40
TOKENS = st.sampled_from([7, 8])  # few, so that what is generated may be what others ask for

prompts = st.one_of(
    st.lists(TOKENS, min_size=1, max_size=24),
    st.builds(lambda n, tail: [7] * n + tail, st.integers(1, 24), st.lists(TOKENS, max_size=3)),
)


@st.composite
def schedulers(
    draw: st.DrawFn, groups: tuple[tuple[AttentionSpan, ...], ...] = (FULL,), states: bool = False
) -> RunScheduler:
    """Schedulers with waiting requests, each of which fits."""
    max_num_seqs = draw(st.integers(1, 4))
    num_blocks, block_size = draw(st.integers(8, 40)), draw(st.integers(1, 4))
    is_caching, spans = draw(st.sampled_from([True, True, False])), draw(st.sampled_from(groups))
    config = SchedulerConfig(
        MAX_MODEL_LEN,
        max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 40)),
        batching=draw(st.sampled_from(list(POLICIES))),
    )
    slots = 1 + 2 * max_num_seqs if states and draw(st.booleans()) else 0
    cache = CacheConfig(
        num_blocks * len(spans), block_size, is_caching, spans, config.max_chunk, slots, draw(st.integers(1, 4))
    )
    scheduler = RunScheduler(config, KVCacheManager(cache))
    for index in range(draw(st.integers(1, 8))):
        if (one := draw(requests(index, cache))) is not None:
            scheduler.add(one)
    return scheduler


@st.composite
def requests(draw: st.DrawFn, index: int, cache: CacheConfig) -> Request | None:
    prompt, wanted = draw(prompts), draw(st.integers(1, 30))
    try:
        most = resolve_max_tokens(len(prompt), wanted, max_model_len=MAX_MODEL_LEN, cache=cache, param="prompt")
    except InvalidRequest:
        return None
    salt = draw(st.sampled_from(["", "", "salt"]))
    return request(f"r{index}", prompt, most, priority=draw(st.integers(0, 1)), cache_salt=salt)


def state(scheduler: RunScheduler) -> Any:
    """All that later decisions depend on."""
    pools, states = [scheduler._cache.pool], scheduler._cache.states
    if states is not None:
        pools.append(states.pool)
    queues = [
        [(seq.request.request_id, seq.token_ids, seq.num_computed_tokens, seq.blocks.tables) for seq in queue]
        for queue in (scheduler._running, scheduler._waiting)
    ]
    slots = [(seq.blocks.state.slots, seq.blocks.state.left) for seq in scheduler._running]
    steps_left = None if scheduler._policy.mixes_phases else scheduler._gate.steps_left
    books = [(list(pool.free_blocks()), pool.ref_counts, pool.digests, pool.cached) for pool in pools]
    return steps_left, queues, slots, books


def sample(plan: StepPlan) -> StepResult:
    """One token for each sequence, the same in every step."""
    sampled = {seq.request_id: SampledToken(7 + int(seq.request_id[1:]) % 2) for seq in plan.seqs if seq.needs_sample}
    return StepResult(plan.step_id, sampled, 0.0)


def is_like(plan: StepPlan, other: StepPlan) -> bool:
    ids = [[seq.request_id for seq in one.decode] for one in (plan, other)]
    return ids[0] == ids[1] and not (other.prefill or other.preempted or other.admitted)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(scheduler=schedulers(GROUPS, states=True), data=st.data())
def test_steps_in_one_go_leave_what_single_steps_leave(scheduler: RunScheduler, data: st.DataObject) -> None:
    total = 0
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        count = data.draw(st.integers(0, scheduler.count_repeats(plan)))
        single, single_plan = deepcopy((scheduler, plan))
        for _ in range(count):
            events = single.apply(single_plan, sample(single_plan), 0.0)
            assert not any(one.finish_reason for one in events)
            single_plan = single.schedule(0.0)
            assert is_like(plan, single_plan)
        events, begun = single.apply(single_plan, sample(single_plan), 0.0), {seq.request_id for seq in plan.prefill}
        expected = [one for one in events if one.finish_reason or one.request_id in begun]
        assert scheduler.apply_run(plan, sample(plan).sampled, count + 1, 0.0, 1.0) == expected
        assert state(scheduler) == state(single)
        assert scheduler.audit() == []
        total += count
    event(f"repeats={min(total, 30) // 10 * 10}+")


@settings(max_examples=200, deadline=None)
@given(schedulers())
def test_the_next_plan_is_another_where_nobody_waits(scheduler: RunScheduler) -> None:
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        count, is_alone = scheduler.count_repeats(plan), scheduler.num_waiting == 0
        if not count:
            scheduler.apply(plan, sample(plan), 0.0)
        elif not scheduler.apply_run(plan, sample(plan).sampled, count + 1, 0.0, 1.0) and is_alone:
            assert scheduler.schedule(0.0).preempted
            return


def bench(num_blocks: int, max_num_seqs: int, **fields: Any) -> RunScheduler:
    cache = KVCacheManager(CacheConfig(num_blocks, 4, **fields))
    return RunScheduler(SchedulerConfig(MAX_MODEL_LEN, max_num_seqs, 64), cache)


def begun(scheduler: RunScheduler, *asked: Request) -> StepPlan:
    """The first decode step, after a step of prompts."""
    for one in asked:
        scheduler.add(one)
    plan = scheduler.schedule(0.0)
    scheduler.apply(plan, sample(plan), 0.0)
    return scheduler.schedule(0.0)


def test_a_run_ends_with_the_shortest_answer() -> None:
    scheduler = bench(40, 4)
    plan = begun(scheduler, request("r0", [7] * 5, 9), request("r1", [8] * 5, 20))
    assert scheduler.count_repeats(plan) == 7  # 9 tokens: of the prompt, of this step, and 7 more
    assert scheduler.takes_arrivals


def test_a_step_with_a_prompt_is_no_run() -> None:
    scheduler = bench(40, 4)
    scheduler.add(request("r0", [7] * 5, 9))
    assert scheduler.count_repeats(scheduler.schedule(0.0)) == 0


def test_a_run_ends_where_blocks_do() -> None:
    scheduler = bench(7, 2)  # 6 blocks of 4 tokens: two for each prompt, one for each to grow
    plan = begun(scheduler, request("r0", [7] * 6, 20), request("r1", [8] * 6, 18))
    assert scheduler.count_repeats(plan) == 5  # 7 tokens each at this step, 12 when their third blocks are full


def test_a_run_stops_at_a_block_that_a_stuck_request_could_share() -> None:
    for prompt, count in (([7] * 20, 3), ([8] * 20, 12)):
        scheduler = bench(7, 2)  # of 6 blocks the second needs 5, and one more while the first runs
        plan = begun(scheduler, request("r0", [7] * 4, 14), request("r1", prompt, 1))
        assert scheduler.num_waiting == 1
        assert scheduler.count_repeats(plan) == count
        assert not scheduler.takes_arrivals
