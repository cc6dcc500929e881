"""Where requests go: by turns, by load, or to what is cached already."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from server.clock import NS
from server.errors import SettingsError
from server.planner.models import resolve_shape
from server.planner.routing import LOAD_MARGIN, MORE_OPEN, LeastLoaded, NamedPrompt, PrefixAware, RoundRobin, Routing
from server.planner.sim_options import SimulationOptions
from server.planner.sim_report import SimulationReport
from server.planner.simulator import run_simulation
from server.planner.workload import Workload

BLOCK = 128


class Cache:
    """Has the same number of cached tokens of every prompt."""

    def __init__(self, num_cached: int) -> None:
        self._num_cached = num_cached

    def open_prompt(self, index: int) -> NamedPrompt:
        return None  # type: ignore[return-value]

    def num_cached_tokens(self, prompt: NamedPrompt) -> int:
        return self._num_cached


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


def served(routing: Routing) -> SimulationReport:
    return run_simulation(replace(TALK, routing=routing))


def test_turns_and_loads() -> None:
    turns = RoundRobin()
    assert [turns.choose(0, [5, 0, 0]) for _ in range(4)] == [0, 1, 2, 0]
    assert LeastLoaded().choose(0, [2, 1, 1]) == 1


def test_a_prefix_draws_until_its_engine_is_overloaded() -> None:
    router = PrefixAware([Cache(0), Cache(64), Cache(32)])
    assert router.choose(0, [0, 0, 0]) == 1
    assert router.choose(0, [0, MORE_OPEN, 0]) == 1
    assert router.choose(0, [0, MORE_OPEN + 1, 0]) == 2
    assert router.choose(0, [8, int(8 * LOAD_MARGIN) + MORE_OPEN, 8]) == 1


def test_without_a_prefix_the_load_decides() -> None:
    assert PrefixAware([Cache(0), Cache(0), Cache(0)]).choose(0, [2, 1, 2]) == 1


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


def test_prompts_that_share_nothing_go_by_load() -> None:
    alike = replace(TALK.workload, prefixes=None)
    reports = [run_simulation(replace(TALK, workload=alike, routing=name)) for name in ("prefix-aware", "least-loaded")]
    assert list(reports[0].records.finish_ns) == list(reports[1].records.finish_ns)


def test_an_unknown_routing_is_refused() -> None:
    with pytest.raises(SettingsError, match="routing is 'random': one of least-loaded, round-robin, prefix-aware"):
        run_simulation(replace(TALK, routing="random"))  # type: ignore[arg-type]
