"""Predicted order of service before a newcomer, compared with the scheduler's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import Bench, bench, request

from neuronserve.server.scheduler import fair_queue
from neuronserve.server.scheduler.fair_queue import MAX_REMEMBERED
from neuronserve.server.scheduler.turns import Turns, Waiting
from neuronserve.server.types import Request, ServedTokens

OUTPUT = 5  # tokens of each sequence here
Rows = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 12), st.integers(-1, 1), st.integers(0, 8)),
    min_size=1,
    max_size=24,
)


class Watched:
    """An engine, and the counters of its reports."""

    def __init__(self, num_places: int, num_saved: int = fair_queue.SAVED_TOKENS) -> None:
        with patch.object(fair_queue, "SAVED_TOKENS", num_saved):
            self.bench: Bench = bench(
                num_blocks=200, max_num_seqs=num_places, max_num_batched_tokens=64, enable_prefix_caching=False
            )
        self.turns = Turns()

    def step(self) -> Sequence[str]:
        """One step; ids of those who got a place."""
        plan = self.bench.step()
        self.turns.record(self.bench.reports[-1].served)
        return plan.admitted

    def foreseen(self, newcomer: Request) -> list[str]:
        """Ids of those who will get a place before it."""
        scheduler, requests = self.bench.scheduler, self.bench.requests
        running = scheduler.running_ids
        waiting = [requests[each] for each in scheduler.open_ids if each not in running]
        to_come = Counter[str]()
        for each in running:
            to_come[requests[each].tenant] += OUTPUT - len(self.bench.events[each])
        before = self.turns.before(
            newcomer, [Waiting(each, len(each.prompt_token_ids)) for each in waiting], to_come, OUTPUT
        )
        return [each.request.request_id for each in before]


def arrive(watched: Watched, rows: Sequence[tuple[str, int, int, int]]) -> Request:
    """Requests of (tenant, prompt, priority, steps until the next); the last is returned and not added."""
    for i, (tenant, num_prompt, priority, num_steps) in enumerate(rows):
        one = request(f"r{i:02}", [i % 10] * num_prompt, OUTPUT, ignore_eos=True, tenant=tenant, priority=priority)
        one = replace(one, arrival_time=float(i))
        if i == len(rows) - 1:
            return one
        watched.bench.add(one)
        for _ in range(num_steps):
            if watched.bench.scheduler.has_work:
                watched.step()
    raise AssertionError("there are no rows")


def served_before(watched: Watched, newcomer: Request) -> list[str]:
    """Ids of the requests that get a slot before it, when no other request comes."""
    watched.bench.add(newcomer)
    served: list[str] = []
    while newcomer.request_id not in served:
        served += watched.step()
    return served[: served.index(newcomer.request_id)]


@given(Rows)
def test_with_one_place_the_order_is_that_of_the_scheduler(rows: list[tuple[str, int, int, int]]) -> None:
    """An engine that has had one tenant reports no counters, so what a second one has saved is not known."""
    watched = Watched(1, num_saved=0)
    newcomer = arrive(watched, rows)
    assert watched.foreseen(newcomer) == served_before(watched, newcomer)


@given(Rows, st.integers(2, 4))
def test_with_more_places_it_is_off_by_what_runs(rows: list[tuple[str, int, int, int]], num_places: int) -> None:
    """Generated tokens are counted as they come: by then others have had their turns, for as many tokens."""
    watched = Watched(num_places)
    newcomer = arrive(watched, rows)
    foreseen = watched.foreseen(newcomer)
    served = served_before(watched, newcomer)
    assert abs(len(foreseen) - len(served)) <= 2 * num_places


def test_an_engine_that_has_served_nobody_owes_nothing() -> None:
    turns = Turns()
    turns.record(ServedTokens({"a": 500, "b": 10}, 10))
    newcomer = request("x", [1], arrival_time=9.0, tenant="a")
    others = [Waiting(request(f"r{i}", [1], arrival_time=float(i), tenant="b"), 10) for i in range(3)]
    assert len(turns.before(newcomer, others, {}, 5)) == 3
    turns.reset()
    assert len(turns.before(newcomer, others, {}, 5)) == 1


def test_counters_are_bounded() -> None:
    turns = Turns()
    for i in range(5 * MAX_REMEMBERED):
        turns.record(ServedTokens({f"t{i}": i}, i - 10))
    assert len(turns._counts) <= 2 * MAX_REMEMBERED + 1
