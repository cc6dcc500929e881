"""Scheduling policies: who is served next, what each policy promises, and how long a step may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import Bench, bench, request

from neuronserve.server.config.formats import SchedulingPolicy
from neuronserve.server.scheduler.places import MOST_IN_A_ROW
from neuronserve.server.scheduler.service import NO_OBJECTIVE_S
from neuronserve.server.scheduler.step_rates import StepRates
from neuronserve.server.scheduler.step_size import LEAST_TOKENS, MOST_SKIPPED
from neuronserve.server.types import Request, StepPlan, StepResult


def admitted(plans: Iterable[StepPlan]) -> list[str]:
    return [request_id for plan in plans for request_id in plan.admitted]


QUEUE = (
    request("a0", [1] * 8, tenant="a", arrival_time=0.0, priority=1, first_token_by=9.0),
    request("a1", [2] * 8, tenant="a", arrival_time=1.0, priority=1, first_token_by=8.5),
    request("a2", [3] * 8, tenant="a", arrival_time=2.0, priority=0),
    request("b0", [4] * 8, tenant="b", arrival_time=3.0, priority=1, first_token_by=8.7),
)


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fcfs", ["a0", "a1", "a2", "b0"]),
        ("priority", ["a2", "a0", "a1", "b0"]),
        ("fair", ["a2", "b0", "a0", "a1"]),
        ("slo", ["a1", "b0", "a0", "a2"]),  # a2 has no objective: NO_OBJECTIVE_S after its arrival
    ],
)
def test_each_policy_has_its_order(policy: SchedulingPolicy, order: list[str]) -> None:
    b = bench(num_blocks=64, max_num_seqs=1, policy=policy)
    b.add(*QUEUE)
    for _ in QUEUE:  # the queue is decided while nothing was generated: one step of time each
        b.now = 0.0
        b.step()
        for request_id in list(b.scheduler.running_ids):
            b.abort(request_id)
    assert admitted(b.plans) == order


KEYS: dict[SchedulingPolicy, Callable[[Request], Any]] = {
    "fcfs": lambda one: one.arrival_time,
    "priority": lambda one: (one.priority, one.arrival_time),
    "slo": lambda one: one.first_token_by,
}


@given(st.permutations(range(6)), st.permutations(range(6)), st.lists(st.integers(-1, 1), min_size=6, max_size=6))
def test_what_can_be_in_time_is_served_in_the_order_of_its_policy(
    arrivals: list[int], deadlines: list[int], priorities: list[int]
) -> None:
    each = enumerate(zip(arrivals, deadlines, priorities, strict=True))
    made = [
        request(f"r{i}", [i] * 4, 1, arrival_time=at, first_token_by=99.0 + by, priority=priority)
        for i, (at, by, priority) in each
    ]
    for policy, key in KEYS.items():
        b = bench(num_blocks=64, max_num_seqs=1, policy=policy)
        b.add(*made)
        b.finish()
        assert admitted(b.plans) == [one.request_id for one in sorted(made, key=key)]


Rows = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 12), st.integers(1, 6)), min_size=1, max_size=24)


@given(Rows, st.integers(1, 4), st.sampled_from([0.5, 1.0, 3.0]))
def test_two_that_always_wait_are_served_by_weight_within_the_published_bound(
    rows: list[tuple[str, int, int]], slots: int, weight: float
) -> None:
    """The gap of two backlogged tenants is at most 2 max(w_p L, w_q M), Sheng et al. 2024, theorem 4.4.

    Both token weights are 1 here, L is the longest prompt, and M the most tokens that a batch can generate.
    """
    b = bench(num_blocks=200, max_num_seqs=slots, max_num_batched_tokens=64, enable_prefix_caching=False)
    weights = {"a": weight, "b": 1.0}
    made = [
        request(f"{t}{i}", [i % 10] * n, out, arrival_time=i, tenant=t, weight=weights[t])
        for i, (t, n, out) in enumerate(rows)
    ]
    b.add(*made)
    waiting = Counter(each.tenant for each in made)
    served = {"a": 0.0, "b": 0.0}
    bound = 2 * max(*(n for _, n, _ in rows), slots * max(out for *_, out in rows)) / min(weights.values())
    while b.scheduler.has_work:
        plan = b.step()
        for request_id in plan.admitted:
            waiting[request_id[0]] -= 1
        for seq in plan.seqs:
            num_prompt = len(seq.token_ids) if seq.start < seq.num_prompt_tokens else 0
            served[seq.request_id[0]] += (num_prompt + seq.needs_sample) / weights[seq.request_id[0]]
        if waiting["a"] and waiting["b"]:
            assert abs(served["a"] - served["b"]) <= bound


def test_late_requests_yield_to_those_that_can_be_in_time_but_for_their_share() -> None:
    b = bench(num_blocks=400, max_num_seqs=1, policy="slo", max_model_len=200)
    b.add(*[request(f"late{i:02}", [i] * 4, 1, arrival_time=i / 100, first_token_by=0.5) for i in range(4)])
    b.add(*[request(f"good{i:02}", [i] * 4, 1, arrival_time=1 + i / 100, first_token_by=1e6) for i in range(40)])
    b.finish()
    order = [request_id[:4] for request_id in admitted(b.plans)]
    assert 3 <= order[:30].count("late") <= 5  # of 8 tokens one


Arrivals = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([0.5, 3.0, 20.0, 1e6, 1e6, inf])), min_size=20, max_size=60
)


@given(Arrivals)
def test_under_slo_nothing_starves(rows: list[tuple[int, float]]) -> None:
    """A late request is admitted within nine admissions for each late one before it, whatever else arrives."""
    b = bench(num_blocks=400, max_num_seqs=1, policy="slo", max_num_batched_tokens=8, enable_prefix_caching=False)
    coming = sorted(rows)
    due: dict[str, float] = {}
    waited: Counter[str] = Counter()  # admissions of others since a request was late
    ahead: dict[str, int] = {}  # late ones when it became late
    while b.scheduler.has_work or len(due) < len(coming):
        for index in range(len(due), len(coming)):
            arrival, slo = coming[index]
            if arrival <= b.now:
                due[f"r{index:02}"] = arrival + (slo if slo < inf else NO_OBJECTIVE_S)
                b.add(request(f"r{index:02}", [index % 9] * 4, 1, arrival_time=arrival, first_token_by=arrival + slo))
        plan = b.step() if b.scheduler.has_work else None
        if plan is None:
            b.now += 1.0
            continue
        late = {name for name in b.scheduler.open_ids if due[name] <= b.now - 1 and name not in b.scheduler.running_ids}
        for name in late - ahead.keys():
            ahead[name] = len(late)
        waited.update(late if plan.admitted else ())
    assert all(waited[name] <= 9 * (ahead[name] + 1) for name in ahead)
    assert len(admitted(b.plans)) == len(rows)


def test_a_request_without_an_objective_is_due_some_day() -> None:
    b = bench(num_blocks=64, max_num_seqs=1, policy="slo")
    b.add(request("none", [1] * 4, 1, arrival_time=0.0), request("far", [2] * 4, 1, first_token_by=NO_OBJECTIVE_S + 1))
    b.add(request("near", [3] * 4, 1, first_token_by=NO_OBJECTIVE_S - 1))
    b.finish()
    assert admitted(b.plans) == ["near", "none", "far"]


STEP_S, PROMPT_TOKEN_S = 0.01, 0.001


def timed(b: Bench, num_steps: int) -> list[StepPlan]:
    """Run steps that last STEP_S for a decode and PROMPT_TOKEN_S for each prompt token."""
    plans = []
    for _ in range(num_steps):
        plan = b.scheduler.schedule(b.now)
        num_prompt = sum(len(seq.token_ids) for seq in plan.prefill)
        seconds = STEP_S * bool(plan.decode) + PROMPT_TOKEN_S * num_prompt
        result = b.runner.execute(plan)
        b.now += seconds
        b.record(b.scheduler.apply(plan, StepResult(plan.step_id, result.sampled, seconds), b.now))
        plans.append(plan)
    return plans


def num_prompt_tokens(plan: StepPlan) -> int:
    return sum(len(seq.token_ids) for seq in plan.prefill)


def busy(**fields: Any) -> Bench:
    """Two sequences that decode, and measured rates; then a long prompt arrives."""
    interval = fields.pop("interval_s", inf)
    b = bench(400, max_num_batched_tokens=256, max_model_len=512, **fields)
    for i in range(2):
        b.add(request(f"d{i}", [i] * 40, 100, token_interval_s=interval))
        timed(b, 4)
    b.add(request("long", [7] * 200, 4))
    return b


@pytest.mark.parametrize(("target_ms", "most"), [(60.0, 50), (30.0, 20), (1.0, LEAST_TOKENS)])
def test_a_steps_prompts_take_the_time_that_its_target_leaves(target_ms: float, most: int) -> None:
    b = busy(step_time_target_ms=target_ms)
    sizes = [num_prompt_tokens(plan) for plan in timed(b, 4)]
    assert all(abs(size - most) <= 1 for size in sizes), sizes


@pytest.mark.parametrize(("interval_s", "waits"), [(0.05, False), (0.0101, True), (0.009, False), (inf, False)])
def test_under_slo_a_prompt_waits_until_those_that_decode_have_time_for_it(interval_s: float, waits: bool) -> None:
    """200 tokens take 0.2 s; 32 later tokens make up for it at 0.05 s each, and an interval below a step's is lost."""
    b = busy(policy="slo", interval_s=interval_s)
    first, *later = timed(b, MOST_SKIPPED + 1)
    assert (num_prompt_tokens(first) == 0) == waits
    assert sum(map(num_prompt_tokens, (first, *later))) >= 200, "it waits for so many steps at most"


def flooded(num_places: int = 8, **fields: Any) -> Bench:
    """One tenant has all places and a queue; another one was here before."""
    b = bench(400, max_num_seqs=num_places, max_num_batched_tokens=64, **fields)
    b.add(request("few0", [1] * 4, 1, tenant="few"))
    b.finish()
    b.add(*[request(f"f{i:03}", [i % 10] * 30, 40, tenant="flood", arrival_time=i) for i in range(40)])
    while sum(len(plan.admitted) for plan in b.plans) <= num_places or b.plans[-1].prefill:
        b.step()
    return b


def test_a_tenant_with_few_places_gets_those_of_a_flood_up_to_half_its_share() -> None:
    b = flooded()
    b.add(*[request(f"few{i}", [i] * 8, 20, tenant="few", arrival_time=100.0 + i) for i in range(1, 5)])
    plans = [b.step() for _ in range(6)]
    assert [(plan.admitted, plan.preempted) for plan in plans[:3]] == [
        (("few1",), ("f007",)),
        (("few2",), ("f006",)),
        ((), ()),
    ]
    assert b.scheduler.num_running == 8
    b.finish(4000)
    for request_id in b.requests:
        assert b.tokens(request_id) == b.expected(request_id)


@pytest.mark.parametrize("fields", [{"policy": "fcfs"}, {"num_places": 1}], ids=str)
def test_a_flood_keeps_its_places(fields: dict[str, Any]) -> None:
    """Another order of service has no shares, and of one place nothing is left to share."""
    b = flooded(**fields)
    b.add(request("few1", [1] * 8, 20, tenant="few", arrival_time=100.0))
    assert not b.step().preempted


def test_who_was_served_more_gets_no_place_of_another() -> None:
    """Otherwise the giver would be first in the queue and take its place back."""
    b = bench(400, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=200)
    b.add(*[request(f"m{i:02}", [i % 10] * 60, 1, tenant="much", arrival_time=i) for i in range(20)])
    b.finish()
    b.add(*[request(f"n{i}", [i] * 2, 40, tenant="other", arrival_time=100.0 + i) for i in range(8)])
    b.step()
    b.add(request("m99", [1] * 60, 1, tenant="much", arrival_time=200.0))
    b.finish()
    assert not any(plan.preempted for plan in b.plans)


def test_prompts_of_a_tenant_with_few_places_have_steps_for_themselves() -> None:
    b = bench(400, max_num_seqs=16, max_num_batched_tokens=32, max_model_len=200)
    b.add(request("few0", [1] * 4, 1, tenant="few"))
    b.finish()
    b.add(*[request(f"f{i}", [i] * (4 if i < 6 else 100), 40, tenant="flood", arrival_time=i) for i in range(9)])
    b.step()
    b.add(*[request(f"few{i}", [i] * 99, 9, tenant="few", arrival_time=100.0 + i) for i in (1, 2, 3)])
    tenants = [{b.requests[seq.request_id].tenant for seq in b.step().prefill} for _ in range(MOST_IN_A_ROW + 1)]
    assert tenants == [*[{"few"}] * MOST_IN_A_ROW, {"flood"}]


def test_without_decodes_a_prompt_takes_the_whole_step() -> None:
    b = bench(400, max_num_batched_tokens=256, max_model_len=512, step_time_target_ms=1.0)
    b.add(request("long", [7] * 200, 4))
    assert num_prompt_tokens(timed(b, 1)[0]) == 200


def test_with_target_auto_more_waiting_prompts_get_more_of_a_step() -> None:
    few, many = busy(step_time_target_ms="auto"), busy(step_time_target_ms="auto")
    many.add(*[request(f"w{i}", [i] * 100, 4) for i in range(15)])
    assert num_prompt_tokens(timed(few, 1)[0]) < num_prompt_tokens(timed(many, 1)[0]) <= 254


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 8)), min_size=2, max_size=80), st.integers(1, 200))
def test_rates_of_a_run_are_those_of_its_steps(steps: list[tuple[int, int]], run: int) -> None:
    one, many = StepRates(), StepRates()
    for num_prompt, num_decodes in steps:
        for rates in (one, many):
            rates.record(1, num_prompt, num_decodes, STEP_S + num_prompt * PROMPT_TOKEN_S)
    for _ in range(run):
        one.record(0, 0, 3, 0.5)
    many.record(0, 0, 3, 0.5, run)
    assert many.step_s == pytest.approx(one.step_s)
    assert many.prompt_token_s == pytest.approx(one.prompt_token_s)
