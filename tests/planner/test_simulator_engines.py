"""Runs of equal steps give exactly the records of single steps, on random small workloads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.simulate.driver import Driver
from neuronserve.planner.simulate.records import NEVER, EngineTotals, Records
from neuronserve.planner.simulate.scheduled_engine import ScheduledEngine
from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.config.speculation import SpeculationConfig
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pricer import StepPricer
from neuronserve.server.device.catalog import instance
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.scheduler.batching import POLICIES
from neuronserve.workload.workload import Workload

# Deep and narrow: a prompt takes as long as a few decode steps, so that arrivals fall into runs of them.
MODEL = DecoderSizes(64, 256, 512, 4, 2, 64, 1000).spec("Tiny", 4096)
COST = CostModel.of(MODEL, instance("inf2.xlarge"), 1)
STEP_NS = round(COST.decode(4, 64).elapsed_s * 1e9)


@dataclass(frozen=True)
class Case:
    """Limits and requests (gap before it in ns, input, output) of one small simulation."""

    requests: list[tuple[int, int, int]]
    config: SchedulerConfig
    cache: CacheConfig
    decode_buckets: tuple[int, ...]
    num_engines: int
    max_concurrency: int | None = None
    prefixes: tuple[tuple[int, ...], ...] | None = None  # of two tokens each

    @property
    def workload(self) -> Workload:
        gaps, inputs, outputs = (np.array(column, dtype=np.int64) for column in zip(*self.requests, strict=True))
        return Workload("case", np.cumsum(gaps), inputs, outputs, self.prefixes, prefix_block=2)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    max_model_len, seqs, block_size = draw(st.sampled_from([16, 64])), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    gap = st.one_of(st.just(0), st.just(STEP_NS), st.integers(0, 40 * STEP_NS))
    length = st.integers(1, max_model_len // 2)
    one_full = max_model_len // block_size + 2
    requests = draw(st.lists(st.tuples(gap, length, length), min_size=1, max_size=30))
    names = st.lists(st.integers(0, 1), max_size=max_model_len // 4).map(tuple)
    shared = st.lists(names, min_size=len(requests), max_size=len(requests)).map(tuple)
    speculation = draw(st.sampled_from([None, None, SpeculationConfig("ngram", 3, synthetic_acceptance_length=2.5)]))
    num_drafts = 0 if speculation is None else speculation.most_drafts(seqs)
    return Case(
        requests=requests,
        config=SchedulerConfig(
            max_model_len=max_model_len,
            max_num_seqs=seqs,
            max_num_batched_tokens=draw(st.one_of(st.integers(seqs, 20), st.just(max_model_len + seqs))),
            max_num_queued_reqs=draw(st.sampled_from([3, 1000])),
            batching=draw(st.sampled_from(["continuous", *POLICIES])),
            speculation=speculation,
        ),
        cache=CacheConfig(
            draw(st.integers(one_full // 2 + 1, 3 * one_full)),
            block_size,
            draw(st.booleans()),
            num_states=draw(st.sampled_from([0, 1 + 2 * seqs + num_drafts])),
            snapshot_blocks=draw(st.integers(1, 4)),
        ),
        decode_buckets=draw(st.sampled_from([(max_model_len,), (8, max_model_len), (4, 8, 12, max_model_len)])),
        num_engines=draw(st.integers(1, 3)),
        max_concurrency=draw(st.sampled_from([None, None, 1, 4])),
        prefixes=draw(st.none() | shared),
    )


def simulate(case: Case, is_step_by_step: bool = False) -> tuple[Records, list[ScheduledEngine]]:
    workload = case.workload
    records = Records(len(workload))
    pricer = StepPricer(COST, case.config.max_num_seqs, (8, 16, 64), case.decode_buckets)
    engines = [ScheduledEngine(case.config, case.cache, pricer, workload, records) for _ in range(case.num_engines)]
    for engine in engines:
        engine.is_step_by_step = is_step_by_step
    Driver(engines, workload, records, case.config, case.cache).run(case.max_concurrency)
    return records, engines


def totals(engines: list[ScheduledEngine]) -> list[dict[str, int]]:
    found: list[EngineTotals] = [engine.totals for engine in engines]
    return [vars(one) for one in found]


@given(cases())
def test_runs_of_equal_steps_record_what_single_steps_record(case: Case) -> None:
    records, engines = simulate(case)
    single_records, single_engines = simulate(case, is_step_by_step=True)
    assert vars(records) == vars(single_records)
    assert totals(engines) == totals(single_engines)
    for engine in engines:
        assert engine.scheduler.audit() == []


@given(cases())
def test_every_request_ends_once_and_in_order(case: Case) -> None:
    records, engines = simulate(case)
    ended = [i for i in range(len(case.requests)) if records.finish_ns[i] != NEVER]
    assert len(ended) + records.refused.total() == len(case.requests)
    assert all(engine.num_open == 0 and engine.end_ns == NEVER for engine in engines)
    for i in ended:
        assert (
            case.workload.arrival_ns[i]
            <= records.sent_ns[i]
            <= records.scheduled_ns[i]
            < records.first_token_ns[i]
            <= records.finish_ns[i]
        )
        _, num_input, num_output = case.requests[i]
        assert records.num_output[i] == min(num_output, case.config.max_model_len - num_input)
    assert records.gaps.total() == sum(records.num_output[i] - 1 for i in ended)


@given(cases())
def test_device_time_of_the_requests_is_the_busy_time_of_the_engines(case: Case) -> None:
    records, engines = simulate(case)
    attributed = (sum(records.prefill_shares) + sum(records.decode_shares)) / 1e6
    assert attributed == pytest.approx(sum(engine.totals.busy_ns for engine in engines), rel=1e-9)


def pressed(is_caching: bool) -> Case:
    """Two sequences fit at first, and no longer after they have grown."""
    config = SchedulerConfig(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=66)
    return Case([(0, 8, 30), (0, 8, 30)], config, CacheConfig(12, 4, is_caching), (64,), 1)


@pytest.mark.parametrize("is_caching", [True, False])
def test_preemption_is_part_of_what_is_compared(is_caching: bool) -> None:
    records, engines = simulate(pressed(is_caching))
    single_records, single_engines = simulate(pressed(is_caching), is_step_by_step=True)
    assert totals(engines)[0]["num_preemptions"] > 0
    assert vars(records) == vars(single_records)
    assert totals(engines) == totals(single_engines)


def test_a_run_of_equal_steps_is_one_event_and_an_arrival_ends_it_at_the_next_step() -> None:
    config = SchedulerConfig(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=68)
    workload = Workload("one", np.array([0, 0]), np.array([5, 5]), np.array([40, 40]))
    pricer = StepPricer(COST, 4, (64,), (64,))
    engine = ScheduledEngine(config, CacheConfig(100, 4), pricer, workload, Records(2))
    engine.add(0, 0)
    engine.plan(0)
    start = engine.end_ns
    engine.apply()
    engine.plan(start)
    assert engine.end_ns == start + 39 * STEP_NS
    engine.add(1, start + 3 * STEP_NS + 1)
    assert engine.end_ns == start + 4 * STEP_NS


@pytest.mark.parametrize("offset_ns", [-1, 0, 1])
def test_an_arrival_at_the_very_end_of_a_step_joins_the_next(offset_ns: int) -> None:
    config = SchedulerConfig(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=68)
    prefill_ns = StepPricer(COST, 4, (8, 16, 64), (64,)).prefill_ns(0, 5)
    case = Case([(0, 5, 30), (prefill_ns + 3 * STEP_NS + offset_ns, 5, 9)], config, CacheConfig(100, 4), (64,), 1)
    records, _ = simulate(case)
    assert vars(records) == vars(simulate(case, is_step_by_step=True)[0])
    assert records.scheduled_ns[1] == prefill_ns + (3 + (offset_ns > 0)) * STEP_NS
