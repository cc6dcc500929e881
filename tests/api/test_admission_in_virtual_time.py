"""Admission under loads of several shapes, in virtual time: admitted requests keep the limit, no capacity is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from neuronserve.server.config.formats import Batching
from tests.api.virtual_server import MAX_MODEL_LEN, TTFT_LIMIT_S, Asked, Fate, VirtualServer
from tests.depth import thorough

TIME_S = 40.0
OVERLOAD = 3
Draw = Callable[[Random], Asked]


def fixed(_: Random) -> Asked:
    return Asked(0.0, 80, (32,))


def drawn(chance: Random) -> Asked:
    """A request with a known limit of tokens and an unknown end."""
    return Asked(0.0, chance.randint(20, 200), (chance.randint(5, 80),), max_tokens=256)


def mixed(chance: Random) -> Asked:
    """Prompts of 16 to 2,000 tokens, as many of each order of magnitude."""
    num_prompt = int(16 * (2000 / 16) ** chance.random())
    return Asked(0.0, num_prompt, (min(MAX_MODEL_LEN - num_prompt, chance.randint(5, 80)),))


def several(chance: Random) -> Asked:
    one = drawn(chance)
    return replace(one, outputs=tuple(chance.randint(5, 80) for _ in range(4)))


def two_kinds(chance: Random) -> Asked:
    return Asked(0.0, chance.randint(20, 200), (chance.choice((4, 4, 4, 120)),), max_tokens=256)


def arrivals(draw: Draw, per_s: float, seconds: float = TIME_S, seed: int = 3) -> list[Asked]:
    """Poisson."""
    chance, at = Random(seed), 0.0
    asked = []
    while (at := at + chance.expovariate(per_s)) < seconds:
        asked.append(replace(draw(chance), at_s=at))
    return asked


@cache
def capacity(draw: Draw, batching: Batching) -> tuple[float, float]:
    """Requests and tokens per second of an engine without a door that always has more to do."""
    server, chance = VirtualServer(batching=batching, limit_s=None), Random(1)
    server.run([draw(chance) for _ in range(300)], TIME_S)
    return len(server.fates) / server.end_s, sum(fate.num_tokens for fate in server.fates) / server.end_s


def served(asked: Sequence[Asked], batching: Batching = "neuron", until_s: float = TIME_S) -> VirtualServer:
    server = VirtualServer(batching=batching)
    server.run(asked, until_s)
    return server


def taken(fates: Sequence[Fate]) -> list[Fate]:
    return [fate for fate in fates if fate.taken_s is not None]


def p99_s(fates: Sequence[Fate]) -> float:
    times = sorted(fate.first_s for fate in fates if fate.first_s is not None)
    return times[len(times) * 99 // 100]


def goodput(server: VirtualServer) -> float:
    return sum(fate.num_tokens for fate in server.fates if fate.is_in_time) / server.end_s


@pytest.mark.parametrize("batching", ["neuron", "continuous", thorough("tgi")])
@pytest.mark.parametrize("draw", [fixed, drawn, mixed, several])
def test_at_three_times_the_capacity_who_is_taken_keeps_the_limit_and_no_capacity_is_lost(
    draw: Draw, batching: Batching
) -> None:
    per_s, tokens_per_s = capacity(draw, batching)
    server = served(arrivals(draw, OVERLOAD * per_s), batching)
    assert p99_s(taken(server.fates)) <= 1.5 * TTFT_LIMIT_S
    assert goodput(server) >= 0.9 * tokens_per_s  # of a minute's start too, when nothing was known
    assert any(fate.refusals for fate in server.fates)


@pytest.mark.parametrize("batching", ["neuron", "continuous"])
def test_waits_stay_bounded_where_places_are_held_for_long_and_come_free_together(batching: Batching) -> None:
    """Sequences of two lengths, 4 and 120 tokens: by their mean the forecast is too short, and corrects itself."""
    server = served(arrivals(two_kinds, OVERLOAD * capacity(two_kinds, batching)[0]), batching)
    assert p99_s(taken(server.fates)) <= 3 * TTFT_LIMIT_S
    assert goodput(server) >= 0.9 * capacity(two_kinds, batching)[1]


def test_below_the_capacity_nobody_is_refused() -> None:
    server = served(arrivals(drawn, 0.6 * capacity(drawn, "neuron")[0]))
    assert len(taken(server.fates)) == len(server.fates)


@pytest.mark.parametrize("batching", ["neuron", "continuous"])
def test_a_burst_on_a_server_that_has_just_started_is_not_taken_whole(batching: Batching) -> None:
    server = served([fixed(Random(1)) for _ in range(300)], batching)
    assert 8 <= len(taken(server.fates)) < 40
    assert p99_s(taken(server.fates)) <= 1.5 * TTFT_LIMIT_S


@pytest.mark.parametrize("batching", ["neuron", "continuous"])
def test_a_burst_that_comes_back_when_it_is_told_is_served(batching: Batching) -> None:
    """Most at their first return; the first burst knows less, since the server did not."""
    per_s, _ = capacity(drawn, batching)
    steady = arrivals(drawn, 0.3 * per_s, seconds=20.0)
    burst = [replace(drawn(Random(i)), at_s=20.0, num_tries=9) for i in range(int(8 * per_s))]
    server = served([*steady, *burst], batching, until_s=120.0)
    refused = [fate for fate in server.fates if fate.asked.num_tries > 1 and fate.refusals]
    assert len(refused) > len(burst) / 2
    assert len(taken(refused)) == len(refused)
    assert sum(len(fate.refusals) == 1 for fate in refused) >= 0.7 * len(refused)


@pytest.mark.parametrize("batching", ["neuron", "continuous"])
def test_under_a_flood_that_comes_back_most_returns_are_welcome(batching: Batching) -> None:
    per_s, tokens_per_s = capacity(drawn, batching)
    asked = [replace(each, num_tries=9) for each in arrivals(drawn, OVERLOAD * per_s, seconds=15.0)]
    server = served(asked, batching, until_s=200.0)
    back = [fate for fate in server.fates if fate.refusals]
    assert len(taken(server.fates)) == len(server.fates)
    assert sum(len(fate.refusals) for fate in back) < 2 * len(back)
    assert goodput(server) >= 0.85 * tokens_per_s


@pytest.mark.parametrize("batching", ["neuron", "continuous"])
def test_after_clients_that_heed_nothing_nobody_is_told_to_wait_for_them(batching: Batching) -> None:
    """Refused ones that ask for something else at once, twenty times a second; then a flood."""
    per_s, _ = capacity(several, batching)
    chance = Random(5)
    heedless = [replace(several(chance), at_s=i / 20) for i in range(400)]
    flood = [replace(each, at_s=each.at_s + 23.0) for each in arrivals(several, OVERLOAD * per_s, seconds=15.0)]
    server = served([*heedless, *flood], batching)
    told = [seconds for fate in server.fates for at_s, seconds in fate.refusals if at_s > 23.0]
    assert len(told) > 20
    assert max(told) <= 6 * TTFT_LIMIT_S


def test_a_long_prompt_may_return_when_nothing_is_ahead_of_it() -> None:
    """Its own prompt takes longer than the limit, which no later time changes."""
    warm = [fixed(Random(i)) for i in range(64)]
    ahead = [Asked(20.0, 600, (60,)) for _ in range(12)]
    long = Asked(20.1, 2000, (8,), num_tries=9)
    server = VirtualServer(limit_s=0.4)
    server.run([*(replace(each, at_s=i / 4) for i, each in enumerate(warm)), *ahead, long], 60.0)
    fate = server.fates[-1]
    assert fate.refusals
    assert fate.taken_s is not None
    assert fate.taken_s - 20.0 < 10.0


def test_the_least_urgent_are_refused_first() -> None:
    per_s, _ = capacity(drawn, "neuron")
    shares: dict[int, float] = {-1: 0.5, 0: 1.0, 1: 1.5}
    asked = [
        replace(each, priority=priority)
        for priority, share in shares.items()
        for each in arrivals(drawn, share * per_s, seed=priority + 9)
    ]
    server = served(sorted(asked, key=lambda each: each.at_s))
    urgent, middle, least = ([fate for fate in server.fates if fate.asked.priority == each] for each in shares)
    assert len(taken(urgent)) >= 0.95 * len(urgent)
    assert p99_s(urgent) <= TTFT_LIMIT_S
    assert len(taken(urgent)) / len(urgent) > len(taken(middle)) / len(middle) > len(taken(least)) / len(least)


def test_who_asks_little_is_not_refused_for_anothers_flood() -> None:
    per_s, tokens_per_s = capacity(drawn, "neuron")
    flood = [replace(each, tenant="many") for each in arrivals(drawn, OVERLOAD * per_s)]
    few = [replace(each, tenant="few") for each in arrivals(drawn, 0.3 * per_s, seed=4)]
    server = served(sorted((*flood, *few), key=lambda each: each.at_s))
    little = [fate for fate in server.fates if fate.asked.tenant == "few"]
    assert len(taken(little)) >= 0.9 * len(little)
    assert p99_s(little) <= TTFT_LIMIT_S
    assert goodput(server) >= 0.9 * tokens_per_s


@pytest.mark.parametrize("batching", ["neuron", "continuous"])
@pytest.mark.parametrize("draw", [fixed, drawn])
def test_who_is_passed_by_more_urgent_ones_from_the_start_keeps_the_limit_too(draw: Draw, batching: Batching) -> None:
    """A server that has just started counts requests before any other sign of a flood."""
    per_s, tokens_per_s = capacity(draw, batching)
    asked = [
        replace(each, priority=priority)
        for priority in (-1, 0)
        for each in arrivals(draw, OVERLOAD / 2 * per_s, seed=priority + 4)
    ]
    server = served(sorted(asked, key=lambda each: each.at_s), batching)
    assert p99_s(taken(server.fates)) <= 1.5 * TTFT_LIMIT_S
    assert goodput(server) >= 0.95 * tokens_per_s


@pytest.mark.parametrize("batching", ["neuron", "continuous"])
@pytest.mark.parametrize("draw", [drawn, mixed])
def test_who_was_taken_before_a_flood_of_more_urgent_ones_keeps_the_limit(draw: Draw, batching: Batching) -> None:
    """Nothing foretold it, and it passes them as long as they are not due."""
    per_s, tokens_per_s = capacity(draw, batching)
    low = [replace(each, priority=1) for each in arrivals(draw, 1.5 * per_s)]
    flood = [replace(each, at_s=each.at_s + 15.0) for each in arrivals(draw, 2 * per_s, TIME_S - 15.0, seed=4)]
    server = served(sorted((*low, *flood), key=lambda each: each.at_s), batching)
    before = [fate for fate in taken(server.fates) if fate.asked.priority == 1 and fate.asked.at_s < 15.0]
    assert max(fate.first_s or TIME_S for fate in before) <= 1.5 * TTFT_LIMIT_S
    assert p99_s(taken(server.fates)) <= 1.5 * TTFT_LIMIT_S
    assert goodput(server) >= 0.9 * tokens_per_s


@pytest.mark.parametrize("batching", ["neuron", "continuous"])
def test_a_flood_is_held_to_what_a_key_that_asks_less_leaves_of_the_engine(batching: Batching) -> None:
    per_s, tokens_per_s = capacity(drawn, batching)
    flood = [replace(each, tenant="many") for each in arrivals(drawn, OVERLOAD * per_s)]
    few = [replace(each, tenant="few") for each in arrivals(drawn, 0.3 * per_s, seed=4)]
    server = served(sorted((*flood, *few), key=lambda each: each.at_s), batching)
    assert p99_s(taken(server.fates)) <= 1.5 * TTFT_LIMIT_S
    assert goodput(server) >= 0.95 * tokens_per_s


def test_clients_that_leave_while_they_wait_cost_no_one_else_a_place() -> None:
    per_s, _ = capacity(drawn, "neuron")
    asked = arrivals(drawn, OVERLOAD * per_s)
    leaving = [replace(each, leaves_after_s=1.0 if i % 2 else None) for i, each in enumerate(asked)]
    server, stayed = served(leaving), served(asked)
    staying = [fate for fate in taken(server.fates) if not fate.has_left]
    assert p99_s(staying) <= TTFT_LIMIT_S
    assert len(taken(server.fates)) > len(taken(stayed.fates))
    assert server.engine.scheduler.audit() == []
    assert server.engine.num_open == 0
