"""The meter: what requests were charged is what steps took, and nothing is kept of those that ended."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.cost.meter import Meter
from neuronserve.server.types import Charge, FinishReason, SamplingParams, ScheduledSeq, StepPlan, TokenEvent
from tests.cost.pricing import small_pricer

SLOTS, LONGEST = 8, 1024
PRICER = small_pricer(SLOTS, LONGEST)
NAMES = [f"r{i}" for i in range(SLOTS)]


def seq(name: str, start: int, num_tokens: int) -> ScheduledSeq:
    return ScheduledSeq(name, (0,) * num_tokens, start, (), True, SamplingParams(1), (), start + num_tokens)


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    names = draw(st.permutations(NAMES))
    num_prompts, num_decodes = draw(st.integers(0, 3)), draw(st.integers(0, 5))
    prefill = tuple(seq(name, draw(st.integers(0, 500)), draw(st.integers(1, 500))) for name in names[:num_prompts])
    decode = tuple(seq(name, draw(st.integers(1, LONGEST - 1)), 1) for name in names[3 : 3 + num_decodes])
    return StepPlan(1, prefill, decode)


def event(name: str, finish_reason: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(name, 7, 0, 0.0, finish_reason)


@given(st.lists(st.tuples(plans(), st.sampled_from(["", *NAMES])), max_size=20))
def test_what_requests_were_charged_is_what_steps_took_to_the_nanosecond(turns: list[tuple[StepPlan, str]]) -> None:
    meter, total_ns, ended_ns = Meter(), 0, 0
    for plan, ending in turns:
        charge = PRICER.charge(plan)
        meter.add(plan, charge)
        total_ns += charge.ns
        if ending:
            ended_ns += meter.read([event(ending, "length")])[0].device_ns
    open_ns = sum(charge.device_ns for charge in meter.read([event(name) for name in NAMES]))
    assert ended_ns + open_ns == total_ns


@given(st.lists(plans(), max_size=10))
def test_each_request_is_charged_its_own_shares(steps: list[StepPlan]) -> None:
    meter, used = Meter(), Counter[str]()
    for plan in steps:
        charge = PRICER.charge(plan)
        meter.add(plan, charge)
        for one, share_ns in zip(plan.seqs, charge.shares_ns, strict=True):
            used[one.request_id] += share_ns
    found = meter.read([event(name, "stop") for name in NAMES])
    assert [charge.device_ns for charge in found] == [used[name] for name in NAMES]
    assert all(charge.is_extrapolated == (charge.device_ns > 0) for charge in found), "no model so small was measured"
    assert meter.num_accounts == 0


def test_a_request_that_never_ran_has_taken_nothing() -> None:
    assert Meter().read([event("a", "abort")]) == [Charge(0, False)]


def test_an_id_begins_anew_once_it_has_ended() -> None:
    meter, plan = Meter(), StepPlan(1, (seq("a", 0, 100),), ())
    for _ in range(2):
        meter.add(plan, PRICER.charge(plan))
        assert meter.read([event("a", "length")]) == [Charge(PRICER.prefill_ns(0, 100), True)]
