"""Requests that one scheduler begins and another goes on with, in any order of steps, copies and damages."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from neuronserve.server.scheduler.batching import POLICIES
from neuronserve.server.types import Request, SamplingParams
from tests.scheduler.scheduler_harness import FULL, GROUPS, Bench, bench, expected_output
from tests.scheduler.test_scheduler_properties import MAX_MODEL_LEN, requests
from tests.tier_stores import press


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Bench, Bench]:
    """Two engines of one model; the second reads what the first keeps."""
    num_states, num_blocks = draw(st.sampled_from([0, 0, 7])), draw(st.sampled_from([12, 40]))
    groups, block_size = draw(st.sampled_from([FULL, *GROUPS])), draw(st.integers(1, 4))
    slots, batching = draw(st.sampled_from([3, 20])), draw(st.sampled_from(list(POLICIES)))
    first, second = (
        bench(
            num_blocks,
            block_size,
            max_model_len=MAX_MODEL_LEN,
            batching=batching,
            groups=groups,
            num_states=num_states,
            snapshot_blocks=2,
            tiers=(slots,),
            mirrors=slots,
        )
        for _ in range(2)
    )
    for own, other in zip(second.tiers, first.tiers, strict=True):
        own.follow(other)
    return first, second


class Pair:
    """Two engines, and the requests between them."""

    def __init__(self, first: Bench, second: Bench) -> None:
        self.first, self.second = first, second
        self.asked: dict[str, Request] = {}

    def ask(self, request: Request) -> None:
        self.asked[request.request_id] = request
        self.first.add(replace(request, sampling=replace(request.sampling, max_tokens=1)))

    def step(self, one: Bench) -> None:
        if one.scheduler.has_work:
            one.step()
        for name, request in self.asked.items():
            if self.first.reason(name) == "length" and request.sampling.max_tokens > 1 and name not in self.both:
                tokens = tuple(self.first.tokens(name))
                self.second.add(replace(request, generated_token_ids=tokens, is_handed_over=True))

    def disturb(self, data: st.DataObject) -> None:
        """Damage what is kept, evict what is cached, or forget it, at most one of these."""
        act = data.draw(st.sampled_from(["", "damage", "press", "reset"]))
        if act == "damage":
            for tiers in self.first.tiers:
                tiers.damage(0, data.draw(st.integers(0, 900)))
        elif act == "press":
            press(self.first.cache.pool, self.first.cache.num_free_blocks)
        elif act == "reset":
            data.draw(st.sampled_from([self.first, self.second])).scheduler.reset_prefix_cache()

    def finish(self) -> None:
        for _ in range(5000):
            for each in (self.first, self.second):
                self.step(each)
        assert not any(each.scheduler.has_work for each in (self.first, self.second))

    @property
    def both(self) -> set[str]:
        return {*self.second.requests}

    def tokens(self, name: str) -> list[int]:
        return (self.second if name in self.both else self.first).tokens(name)


@given(pair=pairs().map(lambda both: Pair(*both)), data=st.data())
def test_every_request_has_the_tokens_of_one_engine(pair: Pair, data: st.DataObject) -> None:
    first, second = pair.first, pair.second
    for index in range(data.draw(st.integers(1, 8))):
        one = data.draw(requests(index, first.cache.config, first.now))
        if one is not None:
            pair.ask(replace(one, generated_token_ids=()))
        for _ in range(data.draw(st.integers(0, 5))):
            pair.step(data.draw(st.sampled_from([first, second])))
        pair.disturb(data)
    pair.finish()
    received = [copy for plan in second.plans for copy in plan.received]
    event(f"copied={bool(received)}")
    for name, request in pair.asked.items():
        assert pair.tokens(name) == expected_output(request, MAX_MODEL_LEN, first.cache.config.groups)
    assert {request_id for request_id, *_ in received} <= pair.both


def test_whole_blocks_are_copied_for_the_step_that_begins_with_them() -> None:
    first, second = (bench(tiers=(20,), mirrors=20) for _ in range(2))
    second.tiers[0].follow(first.tiers[0])
    pair = Pair(first, second)
    pair.ask(Request("a", tuple(range(1, 11)), SamplingParams(6), 0.0))
    while first.scheduler.has_work:
        pair.step(first)
    pair.step(second)
    assert second.plans[0].received == (("a", 2, 0),)
    assert [seq.start for seq in second.plans[0].seqs] == [8]
    while second.scheduler.has_work:
        pair.step(second)
    assert not any(plan.received for plan in second.plans[1:])
