"""A plan over the requests of a trace instead of one pair of lengths."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neuronserve.cli import main
from neuronserve.planner.plan.check import check_plan
from neuronserve.planner.plan.demand import Demand, with_trace
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.queueing import Replica
from neuronserve.planner.plan.search import plan
from neuronserve.server.clock import NS
from neuronserve.server.errors import SettingsError
from neuronserve.workload.workload import Workload
from tests.depth import thorough

BASE = PlanOptions("llama-8b", devices=("inf2.xlarge", "inf2.48xlarge"), ttft_s=4.0, tpot_s=0.1)


def trace(seed: int = 3, size: int = 4000, rate: float = 4.0) -> Workload:
    """Chat-like: most prompts short, some long; answers of very different lengths."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1 / rate, size))
    inputs = np.minimum(3500, 1 + random.lognormal(6.2, 1.0, size)).astype(np.int64)
    outputs = np.minimum(500, 1 + random.exponential(150, size)).astype(np.int64)
    return Workload("chat", np.rint((times - times[0]) * NS).astype(np.int64), inputs, outputs)


CHAT = trace()


def test_means_extremes_and_rate_are_those_of_the_trace() -> None:
    options = with_trace(BASE, CHAT)
    report = plan(options, CHAT)
    demand = report.demand
    assert demand.input_tokens == CHAT.input_len.mean()
    assert demand.output_tokens == CHAT.output_len.mean()
    assert demand.longest == (CHAT.input_len + CHAT.output_len).max()
    assert options.request_rate == pytest.approx(CHAT.rate) == pytest.approx(4.0, rel=0.1)
    assert report.buckets.decode == 4096
    assert report.as_json()["demand"]["trace"] == "chat"


def test_a_trace_of_equal_requests_is_the_plan_of_their_lengths() -> None:
    alike = replace(CHAT, input_len=np.full(len(CHAT), 1000), output_len=np.full(len(CHAT), 200))
    options = replace(with_trace(BASE, alike), request_rate=3.0)
    fixed = plan(replace(BASE, input_tokens=1000, output_tokens=200, request_rate=3.0))
    assert plan(options, alike).candidates == fixed.candidates


def test_short_prompts_cost_their_own_bucket() -> None:
    options = replace(with_trace(BASE, CHAT), stack="vllm-neuron")
    report = plan(options, CHAT)
    longest = plan(replace(options, input_tokens=CHAT.input_len.max(), output_tokens=200))
    assert report.candidates[0].prefill_s < 0.5 * longest.candidates[0].prefill_s


@pytest.mark.parametrize(
    ("model", "seed"), [("llama-8b", 3), thorough("llama-8b", 4), thorough("qwen-7b", 3), thorough("qwen-7b", 4)]
)
def test_the_plan_of_a_trace_does_in_a_simulation_what_was_planned(model: str, seed: int) -> None:
    load = trace(seed)
    found = {one.name: one.error for one in check_plan(plan(with_trace(replace(BASE, model=model), load), load))}
    for name in ("tpot_s", "output_tokens_s", "usd_per_million_tokens"):
        assert abs(found[name]) <= 0.10, found


def test_another_rate_stretches_the_gaps() -> None:
    assert CHAT.at_rate(40.0).rate == pytest.approx(40.0, rel=1e-6)
    assert with_trace(BASE, CHAT, 40.0).request_rate == 40.0
    at_once = replace(CHAT, arrival_ns=np.zeros(len(CHAT), dtype=np.int64))
    assert at_once.at_rate(5.0) is at_once
    with pytest.raises(SettingsError, match="chat comes at inf requests a second: give request_rate"):
        with_trace(BASE, at_once)


def test_requests_longer_than_a_slot_are_left_out_and_said() -> None:
    report = plan(replace(with_trace(BASE, CHAT), max_model_len=1024), CHAT)
    longer = int((CHAT.input_len + CHAT.output_len > 1024).sum())
    assert report.demand.left_out == longer > 0
    assert (
        report.notes[0]
        == f"{longer} requests of the trace are longer than a slot can be: left out, and the rate is that of the others"
    )
    assert report.demand.longest <= 1024
    with pytest.raises(SettingsError, match="chat: each request is longer than the 1 tokens of a slot"):
        Demand.of_trace(CHAT, 1)


def test_uneven_requests_wait_longer() -> None:
    even = Replica(0.1, 0.02, 8, 101)
    uneven = replace(even, prefill_cv2=2.0, steps_cv2=1.5)
    assert uneven.at(0.6 * even.saturation).ttft_s > even.at(0.6 * even.saturation).ttft_s
    assert uneven.at(0.6 * even.saturation).tpot_s == even.at(0.6 * even.saturation).tpot_s
    waits = [replace(even, steps_cv2=cv2).at(0.8 * even.saturation).ttft_s for cv2 in (0.0, 0.5, 1.0, 2.0)]
    assert waits == sorted(waits)


def test_the_command_reads_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = tmp_path / "t.csv", tmp_path / "plan.json"
    path.write_text("timestamp,input,output\n" + "".join(f"{i},{100 + 10 * i},{20 + i}\n" for i in range(50)))
    main(["plan", "llama-1b", "--trace", str(path), "--device", "inf2.xlarge", "--json", str(target)])
    assert "50 requests of t.csv (csv)" in " ".join(capsys.readouterr().out.split())
    record = json.loads(target.read_text())
    assert record["demand"]["input_tokens"] == 345.0
    assert record["options"]["request_rate"] == 1.0


def test_tokens_per_joule_need_a_power_figure() -> None:
    known = plan(replace(BASE, chip_watts=100.0))
    for row in known.candidates:
        chips = {"inf2.xlarge": 1, "inf2.48xlarge": 12}[row.device]
        assert row.tokens_per_joule == pytest.approx(row.output_tokens_s / (100.0 * chips))
    assert "at the 100 W a chip that were given" in known.notes[-1]
    assert {row.tokens_per_joule for row in plan(BASE).candidates} == {None}
    grid = plan(replace(BASE, chip_watts=100.0, grid_g_per_kwh=380.0)).candidates
    for row in grid:
        assert row.tokens_per_joule is not None
        assert row.grams_per_million_tokens == pytest.approx(1e6 / row.tokens_per_joule / 3.6e6 * 380)
    assert {row.grams_per_million_tokens for row in known.candidates} == {None}
    with pytest.raises(SettingsError, match="chip_watts is -1: a finite number above 0"):
        replace(BASE, chip_watts=-1)
