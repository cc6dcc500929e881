"""Deployments whose instances fail: every request has one end, no token is lost or made twice, and no dollar."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.cli import main
from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.simulate.autoscaling import INSTANCE_BOOT_S, LOAD_BYTES_PER_S, Autoscaling
from neuronserve.planner.simulate.failing_fleet import FailingFleet
from neuronserve.planner.simulate.failures import Failures, ZoneOutage
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.records import NEVER
from neuronserve.planner.simulate.report import SimulationReport
from neuronserve.planner.simulate.routing import ROUTINGS, Routing
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.server.clock import NS
from neuronserve.server.config.disaggregation import Disaggregation
from neuronserve.server.cost.compile_time import compile_time
from neuronserve.server.errors import SettingsError
from neuronserve.server.route.rules import MAX_LOSSES, MAX_WAIT_S
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange
from neuronserve.workload.synthetic import SyntheticWorkload

CHAT = SyntheticWorkload(150, Arrivals(3), LengthRange(50, 600), LengthRange(1, 300), 64, 3)
BASE = SimulationOptions(
    resolve_shape("llama-1b"),
    "inf2.xlarge",
    CHAT.generate(),
    tensor_parallel_size=2,
    replicas=6,
    max_model_len=1024,
    max_num_seqs=4,
)
QUICK = Failures(detection_s=2.0, replacement_delay_s=5.0)


def ran(failures: Failures, **change: Any) -> SimulationReport:
    return run_simulation(replace(BASE, failures=failures, **change))


def fleet_of(report: SimulationReport) -> FailingFleet[Any]:
    assert isinstance(report.fleet, FailingFleet)
    return report.fleet


def check_conservation(report: SimulationReport) -> None:
    """Requests end once, tokens come once, and dollars are instance-hours x price."""
    records, asked = report.records, report.options.workload.output_len
    assert report.completed + report.failed == len(asked)
    assert records.carried == {}
    done = [index for index, finish in enumerate(records.finish_ns) if finish != NEVER]
    assert [records.num_output[index] for index in done] == [asked[index] for index in done]
    if not report.failed:
        assert records.gaps.total() == sum(asked) - len(asked)
    end_ns, options = round(report.duration_s * NS), report.options
    price = {False: options.hourly_usd, True: options.spot_hourly_usd}
    paid = sum(each.billed_ns(end_ns) / NS / 3600 * price[each.is_spot] for each in report.fleet.replicas)
    assert report.cost.total_usd == pytest.approx(paid)
    assert report.cost.conservation_error < 1e-9
    for replica in report.fleet.replicas:
        assert all(totals.busy_ns <= replica.billed_ns(end_ns) for totals in replica.totals)
    json.dumps(report.as_json(), allow_nan=False)


@given(
    node_h=st.sampled_from([None, 0.005, 0.05]),
    spot=st.sampled_from([(0.0, None), (0.5, 0.01), (1.0, 0.1)]),
    outage=st.sampled_from([None, ZoneOutage(5, 30), ZoneOutage(0, 15, 1)]),
    zones=st.integers(2, 3),
    autoscale=st.sampled_from(["fixed", "reactive", "keda"]),
    routing=st.sampled_from(ROUTINGS),
    clients=st.sampled_from([None, 9]),
    queue=st.sampled_from([3, 1000]),
    seed=st.integers(0, 100),
)
def test_whatever_fails_each_request_ends_once_and_no_token_is_lost(
    node_h: Any,
    spot: Any,
    outage: Any,
    zones: int,
    autoscale: Any,
    routing: Routing,
    clients: Any,
    queue: int,
    seed: int,
) -> None:
    failures = replace(
        QUICK, node_mtbf_h=node_h, spot_share=spot[0], spot_mtbf_h=spot[1], zone_outage=outage, seed=seed
    )
    report = ran(
        replace(failures, num_zones=zones),
        autoscaling=Autoscaling(autoscale, 1, 6, startup_delay_s=7, scale_down_stabilization_s=15),
        workload=replace(CHAT, num_requests=80, seed=seed).generate(),
        routing=routing,
        max_concurrency=clients,
        max_num_queued_reqs=queue,
        stack="vllm-neuron" if seed % 2 else None,
    )
    check_conservation(report)
    assert set(report.records.refused) <= {"queue_full", "replica_lost", "no_replica"}


def test_a_zone_that_fails_loses_no_output_and_its_instances_come_back_elsewhere() -> None:
    report = ran(replace(QUICK, zone_outage=ZoneOutage(10, 30, 1)), autoscaling=Autoscaling(startup_delay_s=5))
    check_conservation(report)
    assert report.completed == 150
    lost = [each for each in report.fleet.replicas if each.gone_ns == 10 * NS]
    assert [each.zone for each in lost] == [1, 1]
    later = [each for each in report.fleet.replicas if each.launched_ns > 0]
    assert [(each.launched_ns, each.zone) for each in later] == [(15 * NS, 0), (15 * NS, 2)]
    assert fleet_of(report).ends == {"zone_down": 2}
    assert report.records.moved["requests"] > 0
    # Clients see nothing from the failure until it is found and another engine has computed the tokens again.
    assert 2000 < report.as_json()["failures"]["longest_pause_ms"] < 4000
    untouched = ran(QUICK)
    assert untouched.records.moved.total() == 0
    for index, finish in enumerate(untouched.records.finish_ns):
        if finish < 10 * NS:
            assert report.records.finish_ns[index] == finish


def test_a_spot_instance_has_two_minutes_to_finish_and_what_it_has_not_goes_on_at_once() -> None:
    spot = replace(QUICK, spot_share=1.0, spot_mtbf_h=0.02)
    short = ran(spot)
    assert fleet_of(short).ends["spot_notice"] > 0
    assert (fleet_of(short).ends["spot_end"], short.records.moved.total()) == (0, 0)
    for replica in short.fleet.replicas:
        assert replica.is_spot
    slow = replace(CHAT, num_requests=12, output_len=LengthRange(7000, 7000)).generate()
    long = ran(spot, workload=slow, max_model_len=8192, max_num_seqs=2, model=resolve_shape("llama-8b"))
    check_conservation(long)
    assert fleet_of(long).ends["spot_end"] > 0
    assert 0 < long.records.pauses.total() <= long.records.moved["requests"]
    drained = [each for each in long.fleet.replicas if NEVER != each.drained_ns < each.gone_ns]
    assert max(each.gone_ns - each.drained_ns for each in drained) == 120 * NS


def test_a_request_that_loses_engine_after_engine_is_given_up() -> None:
    # Engines live for 3 ms, less than this prompt takes, and are replaced at once.
    long = replace(CHAT, num_requests=1, input_len=LengthRange(900, 900)).generate()
    brief = replace(QUICK, node_mtbf_h=0.003 / 3600, detection_s=0.0, replacement_delay_s=0.0)
    report = ran(brief, workload=long, autoscaling=Autoscaling(startup_delay_s=0))
    assert report.records.refused == {"replica_lost": 1}
    assert report.records.moved["requests"] == MAX_LOSSES + 1


def test_requests_without_any_replica_wait_as_long_as_the_router_lets_them() -> None:
    everywhere = replace(QUICK, num_zones=1, zone_outage=ZoneOutage(10, 60), detection_s=0.0)
    report = ran(everywhere, autoscaling=Autoscaling(startup_delay_s=5))
    check_conservation(report)
    first_s = report.options.workload.arrival_s
    served_at_s = 10 + 60 + 5
    waited = [index for index, came_s in enumerate(first_s) if 10 <= came_s < served_at_s - MAX_WAIT_S]
    assert report.records.refused["no_replica"] >= len(waited) > 0
    assert {report.records.finish_ns[index] for index in waited} == {NEVER}
    assert all(report.records.finish_ns[index] > 0 for index, came_s in enumerate(first_s) if came_s > 46)


def test_a_run_follows_from_its_seed_and_failures_that_never_come_change_nothing() -> None:
    often = replace(QUICK, node_mtbf_h=0.02)
    assert ran(often).as_json() == ran(often).as_json()
    assert vars(ran(often).records) != vars(ran(replace(often, seed=1)).records)
    never = ran(replace(QUICK, node_mtbf_h=1e9), routing="prefix-aware")
    assert vars(never.records) == vars(ran(Failures(), routing="prefix-aware").records)


def test_spot_has_its_share_and_its_price() -> None:
    report = ran(replace(QUICK, spot_share=0.5, spot_mtbf_h=1e9))
    assert [each.is_spot for each in report.fleet.replicas] == [False, True] * 3
    assert {each.zone for each in report.fleet.replicas} == {0, 1, 2}
    whole, half = ran(Failures()).cost.total_usd, report.cost.total_usd
    assert half == pytest.approx(whole * (1 + report.options.spot_hourly_usd / report.options.hourly_usd) / 2)


def test_a_cold_start_has_the_boot_the_weights_and_without_a_cache_the_compiler() -> None:
    cached = replace(BASE, autoscaling=Autoscaling())
    cold = replace(BASE, autoscaling=Autoscaling(compile_at_start=True))
    graphs = len(BASE.compiled_prompts) + len(BASE.compiled_contexts)
    compile_s = compile_time(BASE.model, 2, graphs).seconds
    assert cached.startup_ns == pytest.approx((INSTANCE_BOOT_S + BASE.weight_bytes / LOAD_BYTES_PER_S) * NS)
    assert cold.startup_ns - cached.startup_ns == pytest.approx(compile_s * NS)


@pytest.mark.parametrize(
    ("failures", "change", "words"),
    [
        (Failures(spot_share=1.5), {}, "spot_share is 1.5: it is 0 to 1"),
        (Failures(spot_share=0.5), {}, "spot_share is 0.5 and spot_mtbf_h None: give both"),
        (Failures(spot_mtbf_h=5), {}, "spot_share is 0 and spot_mtbf_h 5: give both"),
        (Failures(node_mtbf_h=-1), {}, "node_mtbf_h is -1: it must be above 0"),
        (Failures(num_zones=0), {}, "num_zones is 0"),
        (Failures(detection_s=-1), {}, "detection_s is -1"),
        (Failures(zone_outage=ZoneOutage(0, 1, 3)), {}, "zone_outage is of zone 3: zones are 0 to 2"),
        (Failures(node_mtbf_h=5), {"disaggregate": Disaggregation(3, 3)}, "disaggregate is prefill:3,decode:3: fail"),
    ],
)
def test_impossible_failures_are_refused(failures: Failures, change: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        ran(failures, **change)


def test_the_command_shows_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    argv = "simulate llama-1b --replicas 6 --num-prompts 200 --request-rate 4 --random-output-len 200 --day 0.5"
    failing = "--node-mtbf-h 0.5 --zone-outage 20:30:2 --detection-s 3 --spot-share 0.5 --spot-mtbf-h 1"
    main([*argv.split(), *failing.split(), "--json", str(target)])
    figures = json.loads(target.read_text())["failures"]
    assert figures["ends"]["zone_down"] == 2
    assert (figures["zone_outage"], figures["detection_s"]) == ([20.0, 30.0, 2], 3.0)
    assert figures["p99_pause_ms"] >= 3000
    assert "2 zone_down" in capsys.readouterr().out
    main([*argv.split(), "--zone-outage", "noon"])
    assert "zone_outage is 'noon': it is START:SECONDS or START:SECONDS:ZONE" in capsys.readouterr().err
