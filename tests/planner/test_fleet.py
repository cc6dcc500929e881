"""Deployments that scale: no request is lost, no instance is billed twice, and a start takes time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.cli import main
from neuronserve.planner.calibrate.slot_engine import SlotEngine, SlotTimes
from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.simulate.autoscaling import Autoscaling, policy_of
from neuronserve.planner.simulate.driver import Driver
from neuronserve.planner.simulate.fleet import Fleet, Replica
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.records import NEVER, Records
from neuronserve.planner.simulate.report import SimulationReport
from neuronserve.planner.simulate.routing import ROUTINGS, Routing
from neuronserve.planner.simulate.scaling import Scaling
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.server.clock import NS
from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.scheduler.batching import BatchingPolicy
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange
from neuronserve.workload.slo import Slo
from neuronserve.workload.synthetic import SyntheticWorkload
from neuronserve.workload.workload import Workload

USD_PER_HOUR = 3.6  # a tenth of a cent each second
QUICK = Autoscaling("reactive", 1, 5, startup_delay_s=40, scale_down_stabilization_s=30)


def bursts(*times_s: float, each: int = 60, output: int = 400) -> Workload:
    """Requests that come together at each of the times."""
    arrival = np.repeat(np.array(times_s), each) * NS
    size = len(arrival)
    return Workload("bursts", arrival.astype(np.int64), np.full(size, 300), np.full(size, output))


BASE = SimulationOptions(
    resolve_shape("llama-1b"),
    "inf2.xlarge",
    bursts(0, 10, 20, 400, 410),
    tensor_parallel_size=2,
    max_model_len=1024,
    max_num_seqs=4,
    usd_per_hour=USD_PER_HOUR,
    slo=Slo(ttft_ms=4000),
    autoscaling=QUICK,
)


def ran(**change: Any) -> SimulationReport:
    return run_simulation(replace(BASE, **change))


def test_a_replica_that_is_launched_takes_requests_after_its_start_and_is_paid_from_its_launch() -> None:
    report = ran(workload=bursts(0, 14, 60))
    first, *launched = report.fleet.replicas
    assert (first.launched_ns, first.ready_ns) == (0, 0)
    assert {replica.launched_ns for replica in launched} == {15 * NS}
    assert {replica.ready_ns for replica in launched} == {55 * NS}
    begun = [records for replica in launched for records in replica.totals]
    assert sum(totals.num_steps for totals in begun) > 0
    # What came before 55 s had one replica: as in a deployment of one, until then.
    alone = ran(workload=bursts(0, 14, 60), autoscaling=Autoscaling())
    assert report.records.first_token_ns[:120] == alone.records.first_token_ns[:120]
    assert report.ttft_ms[120:].mean() < alone.ttft_ms[120:].mean()


@pytest.mark.parametrize(
    ("replica", "billed_s"),
    [
        (Replica(0, 0), 100.25),  # outlives the run
        (Replica(30 * NS, 70 * NS), 70.25),
        (Replica(0, 0, 80 * NS, 90 * NS), 90),
        (Replica(0, 0, 80 * NS, 90 * NS + 1), 91),  # begun seconds count
        (Replica(50 * NS, 90 * NS, 55 * NS, 55 * NS), 60),  # a minute at least
    ],
)
def test_what_is_gone_is_billed_by_the_second_and_at_least_a_minute(replica: Replica, billed_s: float) -> None:
    assert replica.billed_ns(100 * NS + NS // 4) == billed_s * NS


def test_the_bill_is_of_all_replicas_and_conserved() -> None:
    report = ran()
    gone = [replica for replica in report.fleet.replicas if replica.gone_ns != NEVER]
    assert gone
    end_ns = round(report.duration_s * NS)
    paid_s = sum(replica.billed_ns(end_ns) for replica in report.fleet.replicas) / NS
    assert report.cost.total_usd == pytest.approx(paid_s * USD_PER_HOUR / 3600)
    assert report.cost.conservation_error < 1e-9
    figures = report.as_json()
    assert figures["autoscaling"]["replica_hours"] == pytest.approx(paid_s / 3600)
    assert figures["usd_per_million_tokens"] == pytest.approx(
        report.cost.total_usd / (report.total_input_tokens + report.total_output_tokens) * 1e6
    )
    json.dumps(figures, allow_nan=False)


def test_who_is_told_to_go_finishes_what_it_has() -> None:
    trickle = bursts(*[0] * 60, *[14] * 60, *range(60, 160), each=1)
    scaling = replace(QUICK, scale_down_stabilization_s=0)
    report = ran(workload=trickle, autoscaling=scaling, routing="round-robin")
    assert report.completed == len(report.options.workload)
    drained = [r for r in report.fleet.replicas if NEVER != r.drained_ns < r.gone_ns]
    assert drained  # some had requests when they began to drain
    last = max(finish for finish in report.records.finish_ns if finish <= drained[0].gone_ns)
    assert last == drained[0].gone_ns  # and left with the last of them


def test_from_nothing_requests_wait_for_the_first_start() -> None:
    keda = Autoscaling(
        "keda", 0, 3, startup_delay_s=20, cooldown_s=30, polling_interval_s=15, scale_down_stabilization_s=0
    )
    report = ran(workload=bursts(0, 600, each=3), autoscaling=keda)
    late = report.ttft_ms[3:]
    assert late.min() > 20_000
    assert late.max() < 36_000 + 20_000  # a poll of 15 s, a start, and its work
    assert report.completed == 6
    assert report.scaling is not None
    assert report.scaling.share_of_time[0] > 0.5
    assert report.cost.total_usd < 0.5 * USD_PER_HOUR * report.duration_s / 3600


def test_shares_of_time_are_those_of_the_timeline() -> None:
    figures = ran().as_json()["autoscaling"]
    assert sum(figures["share_of_time"].values()) == pytest.approx(1)
    mean = sum(int(ready) * share for ready, share in figures["share_of_time"].items())
    assert figures["mean_ready_replicas"] == pytest.approx(mean)
    assert figures["timeline"][0] == {"time_s": 0, "ready": 1, "starting": 0, "draining": 0}
    assert max(count["ready"] for count in figures["timeline"]) == figures["most_ready_replicas"] > 1
    assert figures["launches"] > figures["terminations"] > 0


def test_missed_limits_are_counted_apart_where_they_came_while_one_started() -> None:
    report = ran()
    figures = report.as_json()["autoscaling"]
    assert 0 < figures["slo_misses_while_starting"] < figures["slo_misses"] == int((report.ttft_ms > 4000).sum())
    fleet: Fleet[Any] = Fleet(list, 0)
    fleet.replicas = [Replica(10, 30), Replica(20, 40, 25, 25), Replica(50, 60), Replica(55, 70, 65, 65), Replica(0, 0)]
    came = Scaling(fleet, 0, 100).arrived_while_starting(np.array([9, 10, 29, 30, 49, 50, 64, 65]))
    assert came.tolist() == [False, True, True, False, False, True, True, False]


@given(
    kind=st.sampled_from([("reactive", 1), ("reactive", 2), ("keda", 0), ("keda", 1)]),
    delay=st.sampled_from([0.0, 7.0, 90.0]),
    calm=st.sampled_from([0.0, 20.0]),
    rate=st.sampled_from([0.2, 6.0, float("inf")]),
    routing=st.sampled_from(ROUTINGS),
    clients=st.sampled_from([None, 9]),
    groups=st.integers(1, 2),
    seed=st.integers(0, 100),
)
def test_whatever_comes_and_goes_no_request_is_lost_and_no_dollar(
    kind: Any, delay: float, calm: float, rate: float, routing: Routing, clients: int | None, groups: int, seed: int
) -> None:
    chat = SyntheticWorkload(80, Arrivals(rate, 0.3), LengthRange(50, 600), LengthRange(1, 300), seed=seed).generate()
    scaling = Autoscaling(kind[0], kind[1], 4, None, None, delay, calm, 15, 30)
    report = ran(
        workload=chat,
        autoscaling=scaling,
        routing=routing,
        max_concurrency=clients,
        tensor_parallel_size=1,
        data_parallel_size=groups,
    )
    assert report.completed == 80
    assert report.cost.conservation_error <= 1e-9
    assert 0 < report.utilization <= 1
    for count in report.fleet.timeline:
        assert kind[1] <= count.ready + count.starting <= 4
    for replica in report.fleet.replicas:
        assert all(totals.busy_ns <= replica.billed_ns(round(report.duration_s * NS)) for totals in replica.totals)


def test_the_same_driver_scales_other_engines() -> None:
    load, scaling = bursts(0, 5, 30, 90), Autoscaling("reactive", 1, 3, startup_delay_s=5)
    records, times = Records(len(load)), SlotTimes(NS // 10, NS // 20, (0,) * 5, 0)

    def replica() -> list[SlotEngine]:
        return [SlotEngine(4, BatchingPolicy(False, None, 0.0, 20), times, load, records)]

    fleet = Fleet(replica, 0, scaling.startup_ns(0))
    fleet.begin(1, 0)
    fleet.policy = policy_of(scaling, 4)
    most = 1 << 30
    Driver(fleet, load, records, SchedulerConfig(most, most, most, most), CacheConfig(most, 32, False)).run()
    assert min(records.finish_ns) > 0
    assert len(fleet.replicas) == 3


def test_the_command_scales_cuts_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, target = tmp_path / "trace.csv", tmp_path / "report.json"
    rows = [f"{second},{5000 if second % 9 == 0 else 900},300" for second in range(90) for _ in range(3)]
    trace.write_text("\n".join(["timestamp,input,output", *rows]))
    argv = ["simulate", "llama-1b", "--trace", str(trace), "--max-model-len", "2048", "--max-num-seqs", "4"]
    scaling = ["--autoscale", "keda", "--min-replicas", "0", "--max-replicas", "3", "--startup-delay-s", "10"]
    main([*argv, *scaling, "--target-waiting", "2", "--ttft-ms", "900", "--json", str(target)])
    shown, figures = capsys.readouterr().out, json.loads(target.read_text())
    assert (figures["completed"], figures["num_cut"], figures["num_dropped"]) == (270, 30, 0)
    assert figures["autoscaling"]["autoscale"] == "keda"
    assert figures["autoscaling"]["most_ready_replicas"] == 3
    assert figures["slo"]["ttft"].keys() == {"limit_ms", "attainment", "mean", "p50", "p90", "p95", "p99"}
    for words in ("on 0 to 3 x inf2.xlarge", "Replicas: keda, 0 to 3", "cut, being longer than 2,048 tokens", "p95"):
        assert words in shown
