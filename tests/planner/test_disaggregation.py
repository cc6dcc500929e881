"""Simulated instances that compute prompts and instances that decode: conservation, golden figures, and the verdict."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronserve.cli import main
from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.simulate.comparison import Comparison, Figures
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.report import SimulationReport
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.server.clock import NS
from neuronserve.server.config.disaggregation import Disaggregation
from neuronserve.server.errors import DeviceError, SettingsError
from neuronserve.workload.workload import Workload

ONE_AND_TWO = Disaggregation(1, 2)
BLOCK_BYTES = 32 * 2 * 32 * 8 * 128 * 2  # positions, keys and values, layers, heads, their size, bfloat16


def workload(prompts: list[int], outputs: list[int], gap_s: float = 0.2) -> Workload:
    arrival = (np.arange(len(prompts)) * gap_s * NS).astype(np.int64)
    return Workload("test", arrival, np.array(prompts), np.array(outputs))


BASE = SimulationOptions(
    resolve_shape("llama-8b"),
    "trn1.32xlarge",
    workload([1000, 2048, 31, 500, 640] * 20, [100, 60, 80, 1, 30] * 20),
    tensor_parallel_size=8,
    replicas=3,
    max_num_seqs=16,
    disaggregate=ONE_AND_TWO,
)


def ran(**change: Any) -> SimulationReport:
    return run_simulation(replace(BASE, **change))


def test_requests_are_handed_over_with_their_whole_blocks() -> None:
    report = ran()
    handed = report.records.handed
    assert report.completed == 100
    assert report.total_output_tokens == 20 * (100 + 60 + 80 + 1 + 30)
    # Neither the prompt below a block nor the answer of one token.
    assert handed["requests"] == 60
    assert handed["bytes"] == 20 * (31 + 64 + 20) * BLOCK_BYTES
    peak = 800e9 / 8 / 4 * 0.2  # a group has a quarter of the instance's EFA, of which a fifth is reached
    assert handed["ns"] == pytest.approx(handed["bytes"] / peak * NS + 60 * 1500, rel=1e-6)
    assert report.cost.conservation_error < 1e-9
    first, *others = report.engines
    assert first.num_decode_tokens == 0
    assert sum(each.num_decode_tokens for each in others) == pytest.approx(20 * (99 + 59 + 79 + 29), abs=60)


def test_engines_of_one_instance_hand_over_by_neuronlink() -> None:
    near, far = ran(replicas=1, data_parallel_size=3), ran()
    assert near.records.handed["bytes"] == far.records.handed["bytes"]
    assert near.records.handed["ns"] < far.records.handed["ns"] / 10


@settings(max_examples=10)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 200)), min_size=1, max_size=30),
    gap_s=st.sampled_from([0.0, 0.02, 0.5]),
    parts=st.sampled_from([(1, 1), (2, 1), (1, 3)]),
    stack=st.sampled_from([None, "nxd-static"]),
)
def test_runs_of_equal_steps_change_nothing_and_no_request_is_lost(
    shapes: list[tuple[int, int]], gap_s: float, parts: tuple[int, int], stack: Any
) -> None:
    prompts, outputs = map(list, zip(*shapes, strict=True))
    parts = Disaggregation(*parts)
    change = {"workload": workload(prompts, outputs, gap_s), "disaggregate": parts, "replicas": parts.total}
    quick, slow = (ran(**change, stack=stack, step_by_step=each) for each in (False, True))
    assert quick.completed == len(shapes)
    assert [*quick.records.num_output] == outputs
    for name in ("first_token_ns", "finish_ns", "scheduled_ns", "prefill_shares", "gaps", "handed"):
        assert getattr(quick.records, name) == getattr(slow.records, name), name
    assert sum(quick.records.gaps.values()) == sum(outputs) - len(outputs)
    assert quick.cost.conservation_error < 1e-9


GOLDEN = {
    "disaggregate": "prefill:1,decode:2",
    "divided": {
        "ttft_p50_ms": 196.74,
        "ttft_p99_ms": 196.74,
        "tpot_p50_ms": 33.83,
        "tpot_p99_ms": 34.16,
        "itl_p50_ms": 30.67,
        "itl_p99_ms": 57.61,
        "usd_per_million": 22.37,
    },
    "whole": {
        "ttft_p50_ms": 211.68,
        "ttft_p99_ms": 226.54,
        "tpot_p50_ms": 41.4,
        "tpot_p99_ms": 42.47,
        "itl_p50_ms": 30.49,
        "itl_p99_ms": 156.81,
        "usd_per_million": 22.35,
    },
    "handed": {"requests": 400, "bytes": 53687091200, "ns": 10738018400},
}


def test_figures_beside_undivided_instances_are_unchanged() -> None:
    busy = workload([1024] * 400, [128] * 400, 0.15)
    found = asdict(Comparison.of(ran(workload=busy, max_num_seqs=64)))
    assert json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 2)) == GOLDEN


def figures(**change: float) -> Figures:
    return {"ttft_p99_ms": 200.0, "tpot_p99_ms": 30.0, "usd_per_million": 4.0} | change


@pytest.mark.parametrize(
    ("divided", "whole", "says"),
    [
        (
            figures(tpot_p99_ms=20),
            figures(),
            "prefill:1,decode:2 pays: p99 of TTFT +0%, of TPOT -33%, $ per output token +0%",
        ),
        (figures(tpot_p99_ms=20, ttft_p99_ms=400), figures(), "pays for some and costs others"),
        (figures(usd_per_million=5.0), figures(), "does not pay"),
        (figures(good_per_s=2.0), figures(good_per_s=1.0), "pays: 2.00 instead of 1.00 requests/s"),
        (figures(good_per_s=1.0), figures(good_per_s=1.0), "does not pay: 1.00 instead of 1.00"),
        (figures(good_per_s=1.0), figures(good_per_s=0.0), "pays"),
    ],
)
def test_a_line_says_whether_it_pays(divided: Figures, whole: Figures, says: str) -> None:
    assert says in Comparison(str(ONE_AND_TWO), divided, whole, {}).verdict


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"replicas": 2}, SettingsError, "replicas must be 3, or 1 with data_parallel_size 3; they are 2 with 1"),
        ({"enable_prefix_caching": False}, SettingsError, "it needs enable_prefix_caching"),
        ({"instance": "inf2.48xlarge"}, DeviceError, "inf2.48xlarge has no Elastic Fabric Adapter"),
    ],
)
def test_what_cannot_be_divided_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ran(**change)


def test_both_commands_print_both_layouts_and_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--device", "trn1.32xlarge", "--disaggregate", "prefill:1,decode:1", "--json", str(tmp_path / "x.json")]
    simulate = ["simulate", "llama-8b", "--tensor-parallel-size", "8", "--num-prompts", "100", "--request-rate", "8"]
    plan = ["plan", "llama-8b", "--input-len", "1024", "--output-len", "128", "--request-rate", "8", "--ttft-ms", "500"]
    for command in (simulate, plan):
        assert main([*command, *common]) in (0, None)
        printed = capsys.readouterr().out
        found = json.loads((tmp_path / "x.json").read_text())["disaggregation"]
        assert found["verdict"] in " ".join(printed.split())
        assert found["handed"]["requests"] >= 100
        assert found["divided"].keys() == found["whole"].keys()
