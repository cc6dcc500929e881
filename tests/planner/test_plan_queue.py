"""The queue formulas against hand-computed cases, their limits, and a plain simulation of a replica."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.plan.batches import gated, longest_of
from neuronserve.planner.plan.queueing import MAX_LOAD, Replica
from neuronserve.planner.plan.times import Limit, MeanTimes, Wait
from neuronserve.server.scheduler.batching import POLICIES

CHAT = Replica(prefill_s=0.1, decode_s=0.02, slots=8, output_tokens=101)

replicas = st.builds(
    Replica,
    prefill_s=st.floats(1e-3, 3.0),
    decode_s=st.floats(1e-3, 0.5),
    slots=st.sampled_from([1, 2, 4, 16, 64, 256]),
    output_tokens=st.integers(1, 2000),
    policy=st.sampled_from([POLICIES["neuron"], POLICIES["continuous"]]),
)


def limits(ttft_s: float, tpot_s: float) -> tuple[Limit, ...]:
    return Limit("TTFT", ttft_s), Limit("TPOT", tpot_s)


loads = st.just(0.0) | st.floats(1e-12, 0.99)  # of saturation


def simulate(replica: Replica, rate: float, num_requests: int, seed: int = 7) -> tuple[float, float]:
    """Return mean TTFT and TPOT if prompts go first, one at a time, when a slot is free; arrivals are Poisson."""
    rng = random.Random(seed)
    arrivals, now = deque[float](), 0.0
    for _ in range(num_requests):
        now += rng.expovariate(rate)
        arrivals.append(now)
    running: list[list[float]] = []  # steps left, time of the first token
    now, ttfts, tpots = 0.0, [], []
    while arrivals or running:
        if not running:
            now = max(now, arrivals[0])
        if arrivals and arrivals[0] <= now and len(running) < replica.slots:
            arrived = arrivals.popleft()
            now += replica.prefill_s
            ttfts.append(now - arrived)
            running.append([replica.steps, now])
            continue
        now += replica.decode_s
        for slot in running:
            slot[0] -= 1
        tpots += [(now - slot[1]) / replica.steps for slot in running if slot[0] == 0]
        running = [slot for slot in running if slot[0] > 0]
    return sum(ttfts) / len(ttfts), sum(tpots) / len(tpots)


def test_saturation_of_a_full_replica_worked_by_hand() -> None:
    # 8 requests: 8 prefills of 0.1 s and 100 steps of 0.02 s they share = 2.8 s
    assert CHAT.saturation == pytest.approx(8 / 2.8)


def test_a_step_runs_on_the_bucket_of_the_longest_of_its_contexts() -> None:
    # Half of all contexts are within the short bucket: all of 3 slots are with a chance of 1/8.
    bucketed = replace(CHAT, decode_s=0.04, shorter=((0.02, 0.5),))
    assert bucketed.step_s(1) == pytest.approx(0.03)
    assert bucketed.step_s(3) == pytest.approx(0.02 / 8 + 0.04 * 7 / 8)
    assert bucketed.at(0).tpot_s == pytest.approx(0.03)
    assert bucketed.saturation == pytest.approx(8 / (0.8 + 100 * (0.02 / 256 + 0.04 * 255 / 256)))


def test_mixed_steps_keep_a_slot_for_one_more_decode_which_the_first_token_waits_for() -> None:
    mixed = replace(CHAT, policy=POLICIES["continuous"])
    assert mixed.completions(1) == CHAT.completions(1)
    assert mixed.saturation == pytest.approx(8 / (8 * 0.1 + 101 * 0.02))
    assert mixed.at(0) == CHAT.at(0)
    rate = 0.3 * CHAT.saturation
    assert mixed.at(rate).ttft_s > CHAT.at(rate).ttft_s + 0.02 * 0.3
    assert mixed.at(rate).tpot_s == pytest.approx(CHAT.at(rate).tpot_s, rel=0.02)


def test_time_per_token_is_one_step_without_load_and_takes_every_prefill_near_saturation() -> None:
    assert CHAT.at(0).tpot_s == 0.02
    # during its 100 steps a request sees the prefill of each of the 7 others: 0.02 + 7 * 0.1 / 100
    assert CHAT.at(CHAT.saturation * (1 - 1e-9)).tpot_s == pytest.approx(0.027)


def test_first_token_of_a_lone_request_takes_its_prefill() -> None:
    assert CHAT.at(0).ttft_s == CHAT.prefill_s


def test_one_slot_is_an_m_d_1_queue() -> None:
    single = Replica(0.5, 0.05, 1, 11)  # one second of service
    assert single.at(0.6).tpot_s == pytest.approx(0.05)
    assert single.at(0.6).ttft_s == pytest.approx(0.6 / (2 * 0.4) + 0.5)  # Pollaczek-Khinchine


def test_requests_of_one_token_queue_for_their_prefill_alone() -> None:
    prefills = Replica(0.5, 0.05, 8, 1)
    assert prefills.saturation == 2.0
    assert prefills.at(1.0).ttft_s == pytest.approx(0.5 + 0.5 * 0.5 / (2 * 0.5))
    assert prefills.at(1.0).tpot_s == 0


def test_two_slots_worked_by_hand() -> None:
    # Steps of 1 s in all and no time for prefills to speak of: M/M/2 with one Erlang, where 1/3 waits, for 1 s a mean.
    pair = Replica(1e-12, 0.1, 2, 11)
    chain_wait = 1 / 3
    constant = 0.5 * (1 + 0.5 * (14**0.5 - 2) / 16)
    step_under_way = 0.5 * 0.1 * (1 - 1 / 3)  # two slots are empty for a third of the time
    assert pair.at(1.0).ttft_s == pytest.approx(chain_wait * constant + step_under_way)


def test_a_static_batch_that_nobody_fills_is_an_m_d_1_queue_with_one_slot_and_half_a_batch_with_many() -> None:
    static = replace(CHAT, policy=POLICIES["static"])
    assert static.at(0) == CHAT.at(0)
    assert replace(static, slots=1).at(0.2) == replace(CHAT, slots=1).at(0.2)
    wide = replace(static, slots=1000, prefill_s=1e-9)  # batches of 2 s, one after the other
    service = wide.at(10.0)
    assert service.wait_s == pytest.approx(1.0, rel=1e-3)
    assert service.tpot_s == CHAT.decode_s
    assert [service.ttft_quantile_s(share) for share in (0.5, 0.95)] == pytest.approx([1.0, 1.9], rel=1e-3)


def test_the_longest_of_a_batch_is_exact_for_constant_and_exponential_lengths() -> None:
    assert longest_of(50, 0.0) == 1
    assert longest_of(50, 1.0) == pytest.approx(sum(1 / n for n in range(1, 51)), rel=0.005)


def test_prompts_wait_for_company_or_for_the_most_steps() -> None:
    policy = POLICIES["tgi"]
    alone, together = gated(policy, 1.0, 2.0, 1e-9, 0.02)  # two that decode wait for nobody
    assert (alone, together) == (pytest.approx(0.01), 1)
    # 36 +- 6 decode: 9 or 12 of them must wait, and never for longer than 20 steps, half of it in the mean
    assert gated(policy, 1e4, 36.0, 1e-9, 0.02)[0] == pytest.approx(0.01 + (8 + 11) / 2 / 2e4)
    assert gated(policy, 10.0, 36.0, 1e-9, 0.02)[0] == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("is_even", [True, False])
def test_a_quantile_is_what_the_others_exceed(is_even: bool) -> None:
    times = MeanTimes(3.0, 0.0, 2.0, (Wait(0.5, 1.0, is_even=is_even), Wait(0.25, 2.0, 4.0, is_even=is_even)))
    for share in (0.2, 0.6, 0.9):
        assert times.ttft_beyond(times.ttft_quantile_s(share)) == pytest.approx(min(1 - share, 0.75), abs=1e-4)


def test_a_rate_at_saturation_is_no_question() -> None:
    with pytest.raises(ValueError, match="not below the saturation"):
        CHAT.at(CHAT.saturation)


def test_thousands_of_slots_overflow_nothing() -> None:
    wide = Replica(1e-3, 0.5, 4096, 2000)
    service = wide.at(0.9 * wide.saturation)
    assert 0.5 < service.tpot_s < 10
    assert 0 < service.ttft_s < 10


@pytest.mark.slow
@pytest.mark.parametrize("replica", [CHAT, replace(CHAT, prefill_s=0.3), replace(CHAT, output_tokens=401)])
@pytest.mark.parametrize("slots", [1, 4, 32])
@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_a_simulated_replica_agrees(replica: Replica, slots: int, load: float) -> None:
    replica = replace(replica, slots=slots)
    rate = load * replica.saturation
    ttft, tpot = simulate(replica, rate, 3000)
    assert replica.at(rate).tpot_s == pytest.approx(tpot, rel=0.06)
    assert replica.at(rate).ttft_s == pytest.approx(ttft, rel=0.25)


def test_limits_that_bind_are_held_with_little_to_spare() -> None:
    rate = CHAT.rate_within(limits(0.3, 0.025))
    assert 0 < rate < MAX_LOAD * CHAT.saturation
    assert CHAT.at(rate).within(limits(0.3, 0.025))
    assert not CHAT.at(rate * 1.001).within(limits(0.3, 0.025))


def test_limits_below_what_an_empty_replica_needs_allow_no_rate() -> None:
    assert CHAT.rate_within(limits(0.09, 1.0)) == 0
    assert CHAT.rate_within(limits(1.0, 0.019)) == 0


@given(replicas, loads, loads)
def test_more_load_is_never_faster(replica: Replica, some: float, other: float) -> None:
    low, high = sorted((some, other))
    slower, faster = replica.at(high * replica.saturation), replica.at(low * replica.saturation)
    assert slower.ttft_s >= faster.ttft_s * (1 - 1e-9)
    assert slower.tpot_s >= faster.tpot_s * (1 - 1e-9)


@given(replicas, st.floats(1e-3, 10), st.floats(1e-3, 1), st.floats(0.1, 1), st.floats(0.1, 1))
def test_tighter_limits_never_allow_a_higher_rate(
    replica: Replica, ttft_s: float, tpot_s: float, ttft_share: float, tpot_share: float
) -> None:
    tighter = limits(ttft_s * ttft_share, tpot_s * tpot_share)
    assert replica.rate_within(tighter) <= replica.rate_within(limits(ttft_s, tpot_s))


def test_replicas_that_share_a_queue_wait_less_for_a_slot_and_are_no_slower() -> None:
    alone = replace(CHAT, slots=4)
    rate = 0.8 * alone.saturation
    waits = [replace(alone, peers=peers).at(rate) for peers in (1, 2, 8, 64)]
    assert [service.ttft_s for service in waits] == sorted((service.ttft_s for service in waits), reverse=True)
    tpots = [service.tpot_s for service in waits]  # prompts come more evenly to the least loaded
    assert tpots == sorted(tpots, reverse=True)
    assert tpots[-1] >= alone.decode_s
    assert waits[-1].ttft_s > alone.prefill_s
