"""Where requests go: by turns, by load, or to what is cached already."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from server.clock import NS
from server.config import CacheConfig
from server.errors import SettingsError
from server.planner.model_names import resolve_shape
from server.planner.simulate.options import SimulationOptions
from server.planner.simulate.report import SimulationReport
from server.planner.simulate.routing import LeastLoaded, PrefixAware, RoundRobin, Routing
from server.planner.simulate.scheduled_engine import request_of
from server.planner.simulate.simulator import run_simulation
from server.scheduler.router import Router
from server.types import Request, TokenEvent
from server.workload.workload import Workload

BLOCK = 128


def conversations(num_users: int, num_turns: int) -> Workload:
    """A prompt is all that its user said before and a block more; the order of users changes with each turn."""
    random = np.random.default_rng(1)
    prefixes = [
        tuple(1000 * user + said for said in range(turn + 1))
        for turn in range(num_turns)
        for user in random.permutation(num_users)
    ]
    size = len(prefixes)
    lengths = np.array([len(prefix) * BLOCK + 20 for prefix in prefixes])
    arrivals = np.arange(size) * NS // 20
    return Workload("talk", arrivals, lengths, np.full(size, 8), tuple(prefixes), BLOCK)


TALK = SimulationOptions(
    resolve_shape("llama-1b"), "inf2.xlarge", conversations(24, 6), replicas=4, max_model_len=2048, max_num_seqs=8
)


CACHE = CacheConfig(200, TALK.block_size)


def served(routing: Routing) -> SimulationReport:
    return run_simulation(replace(TALK, routing=routing))


def test_turns_and_loads() -> None:
    turns = RoundRobin()
    assert [turns.choose(0, [5, 0, 0]) for _ in range(4)] == [0, 1, 2, 0]
    assert LeastLoaded().choose(0, [2, 1, 1]) == 1


def asked(index: int) -> Request:
    return request_of(TALK.workload, index, TALK.max_model_len)


def test_prefix_aware_routing_is_the_servers_router() -> None:
    mine, server = PrefixAware(4, CACHE, asked), Router(4, CACHE)
    for index in range(len(TALK.workload)):
        assert mine.choose(index, [0] * 4) == server.place(asked(index))
        if index % 3 == 0:
            event = TokenEvent(asked(index).request_id, 1, 0, 0.0, "length" if index % 2 else None)
            mine.notify(event)
            server.notify(event)
        if index % 5 == 0:
            mine.refused(index)
            server.end(asked(index).request_id)


def test_the_router_of_a_simulation_hears_of_every_token_and_every_end(monkeypatch: pytest.MonkeyPatch) -> None:
    routers: list[Router] = []

    def kept(num_engines: int, cache: CacheConfig) -> Router:
        routers.append(Watched(num_engines, cache))
        return routers[-1]

    class Watched(Router):
        num_generated = 0

        def generated(self, request_id: str) -> None:
            self.num_generated += 1
            super().generated(request_id)

    monkeypatch.setattr("server.planner.simulate.routing.Router", kept)
    report = run_simulation(replace(TALK, routing="prefix-aware", max_num_queued_reqs=9))
    (router,) = routers
    assert isinstance(router, Watched)
    assert report.completed + report.failed == len(TALK.workload)
    assert (router.num_open, router.loads) == (0, [0] * 4)
    assert router.num_generated == report.total_output_tokens - report.completed  # the last of each is its end


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
