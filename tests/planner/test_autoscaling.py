"""Autoscalers: wanted numbers for a table of observations, and impossible limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.simulate.autoscaling import AutoscalePolicy, Autoscaling, Observation, policy_of
from neuronserve.server.clock import NS
from neuronserve.server.errors import SettingsError

SLOTS = 10
Seen = tuple[float, int, int, int]  # seconds, replicas, open, waiting


def wanted(asked: Autoscaling, *seen: Seen) -> list[int]:
    policy = policy_of(asked, SLOTS)
    return [policy.wanted(Observation(round(time * NS), *counts)) for time, *counts in seen]


REACTIVE = Autoscaling("reactive", 1, 50)
KEDA = Autoscaling("keda", 0, 50)


@pytest.mark.parametrize(
    ("asked", "seen", "replicas"),
    [
        # 0.8 of 10 slots: 8 open requests for each replica.
        (REACTIVE, (0, 4, 41, 0), 6),
        (REACTIVE, (0, 4, 35, 0), 4),  # 35 / 32 is within the tolerance of 0.1
        (REACTIVE, (0, 4, 36, 0), 5),
        (REACTIVE, (0, 4, 10_000, 0), 8),  # in 15 s no more than four more, or twice as many
        (REACTIVE, (0, 30, 10_000, 0), 50),
        (REACTIVE, (0, 1, 10_000, 0), 5),
        (REACTIVE, (0, 4, 0, 0), 4),  # less only after a calm time
        (Autoscaling("reactive", 3, 50), (0, 3, 0, 0), 3),
        (Autoscaling("reactive", target_utilization=0.5), (0, 4, 28, 0), 6),
        (Autoscaling("reactive", target_waiting=2.0), (0, 4, 999, 13), 7),
        (Autoscaling("reactive", target_utilization=1.0, target_waiting=2.0), (0, 4, 60, 13), 7),
        (Autoscaling("reactive", target_utilization=1.0, target_waiting=2.0), (0, 4, 80, 13), 8),
        (KEDA, (0, 4, 999, 24), 6),  # 4 waiting requests for each replica
        (KEDA, (0, 0, 1, 1), 1),
        (KEDA, (0, 0, 0, 0), 0),
        (Autoscaling("keda", 3, 50), (0, 0, 1, 1), 3),
    ],
)
def test_what_one_observation_asks_for(asked: Autoscaling, seen: Seen, replicas: int) -> None:
    assert wanted(asked, seen) == [replicas]


def test_replicas_go_when_fewer_were_enough_for_the_whole_window() -> None:
    calm = Autoscaling("reactive", 1, 50, scale_down_stabilization_s=60)
    seen: list[Seen] = [(0, 4, 64, 0), *((15.0 * i, 8, 20 if i < 3 else 8, 0) for i in range(1, 8))]
    # Eight are asked for at 0, three until 30 s, then one; each is remembered for 60 s.
    assert wanted(calm, *seen) == [8, 8, 8, 8, 8, 3, 3, 1]


def test_without_a_window_replicas_go_at_once() -> None:
    assert wanted(Autoscaling("reactive", 2, 50, scale_down_stabilization_s=0), (0, 9, 9, 0), (15, 9, 9, 0))[-1] == 2


def test_keda_goes_to_nothing_after_the_cooldown_and_comes_back_when_it_polls() -> None:
    asked = Autoscaling("keda", 0, 50, polling_interval_s=30, cooldown_s=60, scale_down_stabilization_s=0)
    seen: list[Seen] = [(0, 1, 9, 3), (30, 1, 9, 0), (60, 1, 5, 0), (75, 1, 5, 0), (90, 0, 0, 0), (105, 0, 2, 2)]
    assert wanted(asked, *seen, (120, 0, 2, 2)) == [1, 1, 1, 0, 0, 0, 1]


@given(
    kind=st.sampled_from(["reactive", "keda"]),
    least=st.integers(1, 5),
    seen=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=60),
)
def test_what_is_asked_for_is_within_the_limits(kind: AutoscalePolicy, least: int, seen: list[tuple[int, int]]) -> None:
    policy, replicas = policy_of(Autoscaling(kind, least, 20), SLOTS), least
    for tick, (num_open, num_waiting) in enumerate(seen):
        before, replicas = replicas, policy.wanted(Observation(15 * NS * tick, replicas, num_open, num_waiting))
        assert least <= replicas <= 20
        assert replicas <= max(before + 4, 2 * before)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"autoscale": "magic"}, "autoscale is 'magic': one of fixed, reactive, keda"),
        ({"min_replicas": 0}, "min_replicas is 0: reactive keeps at least 1"),
        ({"autoscale": "keda", "min_replicas": -1}, "min_replicas is -1: keda keeps at least 0"),
        ({"max_replicas": 10_001}, "max_replicas is 10001: .* to 10000"),
        ({"min_replicas": 5, "max_replicas": 4}, "max_replicas is 4: it is min_replicas 5"),
        ({"autoscale": "keda", "min_replicas": 0, "max_replicas": 0}, "max_replicas is 0"),
        ({"target_utilization": 0.0}, "target_utilization is 0: it must be above 0"),
        ({"target_waiting": float("inf")}, "target_waiting is inf"),
        ({"polling_interval_s": float("nan")}, "polling_interval_s is nan"),
        ({"startup_delay_s": -1.0}, "startup_delay_s is -1: it must be at least 0"),
        ({"cooldown_s": float("inf")}, "cooldown_s is inf"),
    ],
)
def test_limits_that_are_none_are_refused_with_their_value(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Autoscaling(**({"autoscale": "reactive"} | fields)).check()
