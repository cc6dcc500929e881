"""Formulas of several replicas against plain simulations of their queues: each request goes to the least loaded one."""

from __future__ import annotations

import random
from collections import deque
from statistics import mean

import pytest

from neuronserve.planner.plan.formulas import pooling
from neuronserve.planner.plan.queueing import Replica
from neuronserve.planner.plan.times import Limit
from neuronserve.server.scheduler.batching import POLICIES

SERVICE = Replica(prefill_s=1e-9, decode_s=0.01, slots=1, output_tokens=101)  # one second in a slot


def waits_for_slots(peers: int, slots: int, load: float, requests: int = 20_000) -> list[float]:
    """Return waits if every request takes a slot for one second and stays with the replica that had the fewest."""
    rng, now = random.Random(peers * slots), 0.0
    ends: list[deque[float]] = [deque() for _ in range(peers)]  # of open requests, in order
    waits = []
    for _ in range(requests):
        now += rng.expovariate(load * slots * peers)
        for each in ends:
            while each and each[0] <= now:
                each.popleft()
        least = min(ends, key=len)
        start = now if len(least) < slots else least[-slots]
        least.append(start + 1)
        waits.append(start - now)
    return waits[requests // 5 :]


def waits_for_batches(peers: int, slots: int, rate: float, requests: int = 20_000) -> list[float]:
    """Return waits if a replica takes what waits, up to its slots, once its batch has ended, after one second."""
    rng, now = random.Random(peers), 0.0
    waiting: list[list[float]] = [[] for _ in range(peers)]
    running, end_s = [0] * peers, [0.0] * peers
    waits = []

    def start(number: int, at: float) -> None:
        batch, waiting[number] = waiting[number][:slots], waiting[number][slots:]
        waits.extend(at - arrived for arrived in batch)
        running[number], end_s[number] = len(batch), at + 1

    for _ in range(requests):
        now += rng.expovariate(rate * peers)
        for number in range(peers):
            while running[number] and end_s[number] <= now:
                running[number] = 0
                if waiting[number]:
                    start(number, end_s[number])
        least = min(range(peers), key=lambda number: running[number] + len(waiting[number]))
        waiting[least].append(now)
        if not running[least]:
            start(least, now)
    return waits[requests // 5 :]


@pytest.mark.parametrize("load", [0.7, 0.9])
@pytest.mark.parametrize(("peers", "slots"), [(2, 1), (4, 1), (16, 1), (4, 4), (16, 4), (2, 16)])
def test_slots_of_replicas_are_no_single_pool(peers: int, slots: int, load: float) -> None:
    waits = waits_for_slots(peers, slots, load)
    replica = Replica(1e-9, 0.01, slots, 101, peers=peers)
    planned = replica.at(load * replica.saturation)
    longer = mean(wait > 0.02 for wait in waits)
    assert planned.ttft_beyond(0.03) == pytest.approx(longer, rel=0.35, abs=0.02)  # with a step until one's turn
    assert planned.wait_s == pytest.approx(mean(waits), rel=0.35, abs=0.01)


def test_one_slot_waits_for_whole_answers_however_many_replicas_there_are() -> None:
    """Sixteen at 80 % of saturation: 18 of 100 requests wait, in the mean for more than half of an answer."""
    replica = Replica(1e-9, 0.01, 1, 101, peers=16)
    planned = replica.at(0.8)
    assert planned.ttft_quantile_s(0.95) > 0.5
    assert not Limit("TTFT", 0.2, 0.95).is_kept(planned)
    assert pooling(1, 16, 0.8) < pooling(1, 4, 0.8) < pooling(1, 1, 0.8) == 1


@pytest.mark.parametrize("rate", [0.8, 1.5, 3.0])
@pytest.mark.parametrize("peers", [1, 2, 4, 16])
def test_static_batches_of_several_replicas_are_joined_at_their_begin(peers: int, rate: float) -> None:
    waits = waits_for_batches(peers, 8, rate)
    planned = Replica(1e-9, 0.01, 8, 101, policy=POLICIES["static"], peers=peers).at(rate)
    assert planned.wait_s == pytest.approx(mean(waits), rel=0.2, abs=0.02)
    assert planned.ttft_quantile_s(0.95) == pytest.approx(sorted(waits)[int(0.95 * len(waits))], rel=0.25, abs=0.1)
