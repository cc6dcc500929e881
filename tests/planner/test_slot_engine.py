"""The engine of the published load tests: slots, waiting prompts, and runs of steps."""

from __future__ import annotations

from math import floor

import numpy as np
import pytest

from neuronserve.planner.calibrate.slot_engine import SlotEngine, SlotTimes
from neuronserve.planner.simulate.driver import Driver
from neuronserve.planner.simulate.records import Records
from neuronserve.planner.simulate.routing import RoundRobin
from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.scheduler.batching import POLICIES, BatchingPolicy
from neuronserve.workload.workload import Workload

HOST_NS = tuple(10 * max(0, busy - 1) for busy in range(9))  # of each busy slot beyond the first
TIMES = SlotTimes(prefill_ns=1000, decode_ns=100, host_ns=HOST_NS, request_host_ns=50)
EAGER = BatchingPolicy(False, None, waiting_ratio=0.0, max_waiting_steps=20)
MOST = 1 << 30


def workload(arrivals: list[int], outputs: list[int]) -> Workload:
    size = len(arrivals)
    return Workload("w", np.array(arrivals), np.full(size, 8), np.array(outputs))


def serve(load: Workload, policy: BatchingPolicy = EAGER, slots: int = 4, engines: int = 1) -> Records:
    records = Records(len(load))
    served = [SlotEngine(slots, policy, TIMES, load, records) for _ in range(engines)]
    limits = SchedulerConfig(MOST, MOST, MOST, MOST), CacheConfig(MOST, 32, False)
    Driver(served, load, records, *limits, RoundRobin()).run()
    assert all(engine.num_open == 0 for engine in served)
    return records


def test_a_lone_request_takes_host_prefill_and_its_steps() -> None:
    records = serve(workload([7], [11]))
    assert records.first_token_ns[0] == 7 + 50 + 1000
    assert records.finish_ns[0] == 7 + 50 + 1000 + 10 * 100
    assert records.num_output[0] == 11


def test_an_answer_of_one_token_is_the_prefill() -> None:
    records = serve(workload([0], [1]))
    assert records.finish_ns[0] == records.first_token_ns[0] == 1050


def test_prompts_of_one_call_get_their_tokens_together_and_the_host_works_for_each_slot() -> None:
    records = serve(workload([0, 0], [2, 2]))
    assert records.first_token_ns[0] == records.first_token_ns[1] == 50 + 2 * 1000
    assert records.finish_ns[0] == 50 + 2 * 1000 + 100 + 10


def test_others_stand_still_while_a_prompt_is_encoded() -> None:
    alone, met = serve(workload([0], [40])), serve(workload([0, 2000], [40, 1]))
    assert met.finish_ns[0] == alone.finish_ns[0] + 1000


def test_few_waiting_prompts_wait_for_more_but_not_for_longer_than_the_limit() -> None:
    patient = BatchingPolicy(False, None, waiting_ratio=1.2, max_waiting_steps=20)
    many = workload([0] * 4 + [5000], [100] * 4 + [2])
    waits = serve(many, patient, slots=8).first_token_ns[4] - 5050
    assert waits - 1000 > serve(many, EAGER, slots=8).first_token_ns[4] - 5050 - 1000
    assert waits <= 20 * TIMES.step_ns(4) + 1000


def test_a_full_engine_makes_prompts_wait_for_a_slot() -> None:
    records = serve(workload([0, 0], [5, 5]), slots=1)
    assert records.first_token_ns[1] == records.finish_ns[0] + 1000


def test_requests_go_around() -> None:
    records = serve(workload([0, 0, 0], [3, 3, 3]), engines=3)
    assert len({records.first_token_ns[i] for i in range(3)}) == 1
    assert records.first_token_ns[0] == 1050


def test_calls_take_no_more_prompts_than_allowed() -> None:
    records = serve(workload([0, 0], [1, 1]), POLICIES["neuron"])
    assert list(records.first_token_ns) == [1050, 2050]


def test_a_free_slot_is_filled_with_one_prompt_at_once() -> None:
    records = serve(workload([0, 0, 3000], [40, 40, 1]), POLICIES["neuron"])
    first, second, third = records.first_token_ns
    assert (first, second) == (1050, 1050 + 100 + 1000), "a step of the first between the two prompts"
    assert third <= 3050 + TIMES.step_ns(2) + 1000


def test_a_static_batch_is_followed_by_the_next_when_its_last_answer_ends() -> None:
    records = serve(workload([0, 0, 1500, 1500], [5, 30, 1, 1]), POLICIES["static"])
    assert records.finish_ns[0] < records.finish_ns[1]
    assert records.first_token_ns[2] == records.first_token_ns[3] == records.finish_ns[1] + 2 * 1000


def test_a_step_takes_the_hosts_work_for_the_slots_in_use() -> None:
    assert [TIMES.step_ns(busy) for busy in (1, 2, 8)] == [100, 110, 170]
    records = serve(workload([0] * 4, [3, 2, 2, 2]))
    assert records.finish_ns[1] == 50 + 4 * 1000 + 130
    assert records.finish_ns[0] == records.finish_ns[1] + 100


def stepped(load: Workload, policy: BatchingPolicy, slots: int) -> list[int]:
    """Return the end of each answer, step by step: an independent version of the rules of BatchingPolicy."""
    ready = [int(time) + TIMES.request_host_ns for time in load.arrival_ns]
    left, ends, queue, busy = load.output_len.tolist(), [0] * len(load), list(range(len(load))), []
    now, since = 0, 0
    while queue or busy:
        waiting = [i for i in queue if ready[i] <= now]
        if not (waiting or busy):
            now = ready[queue[0]]
            continue
        enough = (
            not busy or since >= policy.max_waiting_steps or len(waiting) >= floor(len(busy) * policy.waiting_ratio)
        )
        if waiting and enough and len(busy) < slots:
            taken = waiting[: slots - len(busy)]
            queue = [i for i in queue if i not in taken]
            now, since = now + len(taken) * TIMES.prefill_ns, 0
            for i in taken:
                left[i] -= 1
                ends[i] = now
            busy += [i for i in taken if left[i]]
        if busy:
            now, since = now + TIMES.step_ns(len(busy)), since + 1
            for i in busy:
                left[i] -= 1
                ends[i] = now
            busy = [i for i in busy if left[i]]
    return ends


@pytest.mark.parametrize("seed", range(40))
def test_runs_of_equal_steps_are_those_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    size, slots = int(random.integers(1, 30)), int(random.integers(1, 6))
    arrivals = np.sort(random.integers(0, 20_000, size)).tolist()
    load = workload(arrivals, random.integers(1, 60, size).tolist())
    policy = BatchingPolicy(False, None, float(random.choice([0.0, 0.3, 1.2])), int(random.integers(1, 25)))
    assert list(serve(load, policy, slots).finish_ns) == stepped(load, policy, slots)
