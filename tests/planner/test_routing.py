"""Routing of requests: in turn, by load, or by cached prefixes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.report import SimulationReport
from neuronserve.planner.simulate.routing import Balancer, LeastLoaded, RoundRobin, RouterInVirtualTime, Routing
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.server.clock import NS
from neuronserve.server.errors import SettingsError
from neuronserve.server.scheduler.router import Router
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange
from neuronserve.workload.synthetic import SyntheticWorkload
from neuronserve.workload.workload import Workload

BLOCK = 128


def conversations(num_users: int, num_turns: int) -> Workload:
    """Each prompt extends its user's last prompt by one block; the order of users changes with each turn."""
    random = np.random.default_rng(1)
    prefixes = [
        tuple(1000 * user + said for said in range(turn + 1))
        for turn in range(num_turns)
        for user in random.permutation(num_users)
    ]
    size = len(prefixes)
    lengths = np.array([len(prefix) * BLOCK + 20 for prefix in prefixes])
    arrivals = np.arange(size) * NS // 30
    return Workload("talk", arrivals, lengths, np.full(size, 8), tuple(prefixes), BLOCK)


TALK = SimulationOptions(
    resolve_shape("llama-1b"),
    "inf2.xlarge",
    conversations(24, 6),
    tensor_parallel_size=2,
    replicas=4,
    max_model_len=2048,
    max_num_seqs=8,
    stack="vllm-neuron",  # which has buckets: what is cached makes prompts shorter
)


def served(routing: Routing) -> SimulationReport:
    return run_simulation(replace(TALK, routing=routing))


def opened(balancer: Balancer, count: int) -> Balancer:
    for number in range(count):
        balancer.open(number)
    return balancer


def test_turns_skip_those_who_are_closed_and_come_to_those_who_open() -> None:
    turns = opened(RoundRobin(), 3)
    assert [turns.choose(0, 0) for _ in range(4)] == [0, 1, 2, 0]
    turns.close(1)
    assert [turns.choose(0, 0) for _ in range(3)] == [2, 0, 2]
    turns.open(1)
    turns.open(3)
    assert [turns.choose(0, 0) for _ in range(4)] == [3, 0, 1, 2]


loads = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3) | st.none()), max_size=200)


@given(loads)
def test_the_least_loaded_is_the_first_of_those_open_with_the_fewest_requests(
    changes: list[tuple[int, int | None]],
) -> None:
    balancer, known = opened(LeastLoaded(), 6), dict.fromkeys(range(6), 0)
    for number, load in changes:
        if number not in known:
            balancer.open(number)
            known[number] = 0
        elif load is None and len(known) > 1:
            balancer.close(number)
            del known[number]
        else:
            known[number] = load or 0
            balancer.loaded(number, known[number])
        assert balancer.choose(0, 0) == min(known, key=lambda each: (known[each], each))


@given(
    seed=st.integers(0, 1000),
    rate=st.sampled_from([5.0, 40.0, float("inf")]),
    clients=st.sampled_from([None, 6, 30]),
    queue=st.sampled_from([2, 1000]),
)
def test_the_router_knows_each_token_when_it_is_made_though_engines_run_many_steps_at_once(
    seed: int, rate: float, clients: int | None, queue: int
) -> None:
    chat = SyntheticWorkload(60, Arrivals(rate), LengthRange(40, 900), LengthRange(1, 200), 64, 3, seed).generate()
    asked = replace(TALK, workload=chat, max_concurrency=clients, routing="prefix-aware", max_num_queued_reqs=queue)
    told = run_simulation(replace(asked, step_by_step=True))
    assert vars(run_simulation(asked).records) == vars(told.records)


def test_the_router_of_a_simulation_has_nothing_open_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    routers: list[Router] = []

    class Watched(RouterInVirtualTime):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            routers.append(self)

    monkeypatch.setattr("neuronserve.planner.simulate.routing.RouterInVirtualTime", Watched)
    report = run_simulation(replace(TALK, routing="prefix-aware", max_num_queued_reqs=9))
    (router,) = routers
    assert report.completed + report.failed == len(TALK.workload)
    assert (router.num_open, router.loads) == (0, [0] * 4)


def test_conversations_find_their_past_where_they_were_served() -> None:
    by_prefix, by_load, by_turn = (served(name) for name in ("prefix-aware", "least-loaded", "round-robin"))
    found, found_by_load, found_by_turn = (sum(report.records.num_cached) for report in (by_prefix, by_load, by_turn))
    shareable = sum(len(prefix) - 1 for prefix in TALK.workload.prefixes or ()) * BLOCK
    assert found > 0.9 * shareable  # nearly all but each user's new block
    assert found > 1.25 * max(found_by_load, found_by_turn)
    assert by_prefix.cost.prefill_usd < 0.95 * by_load.cost.prefill_usd
    assert by_prefix.cost.conservation_error < 1e-9
    assert by_prefix.as_json()["routing"] == "prefix-aware"


def test_the_same_routing_gives_the_same_report() -> None:
    assert served("prefix-aware").as_json() == served("prefix-aware").as_json()


def test_prompts_that_share_nothing_go_to_whoever_has_the_fewest_open_tokens() -> None:
    lengths = np.array([900, 100, 100, 100])
    alike = Workload("alike", np.arange(4) * NS // 1000, lengths, np.full(4, 200))
    by_tokens = run_simulation(replace(TALK, workload=alike, replicas=2, routing="prefix-aware"))
    by_requests = run_simulation(replace(TALK, workload=alike, replicas=2))
    assert [engine.num_decode_tokens // 199 for engine in by_tokens.engines] == [1, 3]
    assert [engine.num_decode_tokens // 199 for engine in by_requests.engines] == [2, 2]


def test_an_unknown_routing_is_refused() -> None:
    with pytest.raises(SettingsError, match="routing is 'random': one of least-loaded, round-robin, prefix-aware"):
        run_simulation(replace(TALK, routing="random"))  # type: ignore[arg-type]
