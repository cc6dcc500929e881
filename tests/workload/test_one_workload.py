"""A load test sends what a simulation of the same settings serves: the same requests at the same times."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest

from neuronserve.cli import main
from neuronserve.loadtests.plan import Plan, make_plan
from neuronserve.loadtests.prompts import IdPrompt
from neuronserve.loadtests.scenario import load_scenario
from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange
from neuronserve.workload.synthetic import SyntheticWorkload
from neuronserve.workload.traces import read_trace
from neuronserve.workload.workload import Workload

Request = tuple[float, int, int]  # seconds, tokens of the prompt and of the answer


def plan_of(arrival: dict[str, Any], dataset: dict[str, Any], seed: int = 0) -> Plan:
    return make_plan(load_scenario(None, {"arrival": arrival, "dataset": dataset, "run": {"num_warmups": 0}}), seed)


def prompts(plan: Plan) -> list[IdPrompt]:
    found = [session.turns[0].prompt for session in plan.dataset.sessions]
    assert all(isinstance(prompt, IdPrompt) for prompt in found)
    return [prompt for prompt in found if isinstance(prompt, IdPrompt)]


def sent(plan: Plan) -> list[Request]:
    outputs = [session.turns[0].output_len or 0 for session in plan.dataset.sessions]
    return list(zip(plan.schedule.offsets or [], map(len, prompts(plan)), outputs, strict=True))


def simulated(load: Workload) -> list[Request]:
    return list(zip(load.arrival_s.tolist(), load.input_len.tolist(), load.output_len.tolist(), strict=True))


PROCESSES: list[tuple[dict[str, Any], Arrivals]] = [
    ({"request_rate": 4.0}, Arrivals(4.0)),
    ({"request_rate": 4.0, "burstiness": 0.25}, Arrivals(4.0, 0.25)),
    ({"request_rate": 4.0, "arrival": "constant"}, Arrivals(4.0, inf)),
    ({}, Arrivals(inf)),
    (
        {"arrival": "ramp", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 9.0, "ramp_up_strategy": "exponential"},
        Arrivals(1.0, end_rate=9.0, ramp="exponential"),
    ),
]


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(("arrival", "arrivals"), PROCESSES, ids=[str(arrivals) for _, arrivals in PROCESSES])
def test_synthetic_requests_are_the_same(arrival: dict[str, Any], arrivals: Arrivals, seed: int) -> None:
    dataset = {"num_prompts": 90, "random_input_len": 60, "random_output_len": 20, "random_range_ratio": 0.5}
    load = SyntheticWorkload(90, arrivals, LengthRange(30, 90), LengthRange(10, 30), seed=seed).generate()
    assert sent(plan_of(arrival, dataset, seed)) == simulated(load)


def test_shared_prefixes_are_the_same() -> None:
    lengths = {"random_input_len": 16, "prefix_len": 32, "num_prefixes": 3}
    plan = plan_of({"request_rate": 4.0}, {"dataset_name": "prefix", "num_prompts": 50, **lengths})
    load = SyntheticWorkload(50, Arrivals(4.0), LengthRange(16, 16), LengthRange(128, 128), 32, 3).generate()
    assert sent(plan) == simulated(load)
    tokens = {name: prompt.flat()[:32] for name, prompt in zip(load.prefixes or (), prompts(plan), strict=True)}
    assert len(tokens) == 3
    assert all(
        prompt.flat()[:32] == tokens[name] for name, prompt in zip(load.prefixes or (), prompts(plan), strict=True)
    )


def test_a_simulation_finds_the_prefixes_that_a_load_test_shares() -> None:
    load = SyntheticWorkload(30, Arrivals(0.5), LengthRange(16, 16), LengthRange(4, 4), 64, 2).generate()
    options = SimulationOptions(resolve_shape("llama-1b"), "inf2.xlarge", load, block_size=32)
    # All but the first of each of the two groups find the 64 tokens of their group.
    assert run_simulation(options).as_json()["total_cached_tokens"] == 28 * 64


def test_requests_of_a_trace_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("timestamp,input,output\n5,100,10\n6.5,33,3\n9,10,1\n")
    plan = plan_of({"trace_speed": 2.0}, {"dataset_name": "csv-trace", "dataset_path": str(path), "length_scale": 0.5})
    load = read_trace(path).at_speed(2.0).at_scale(0.5)
    assert sent(plan) == simulated(load) == [(0.0, 50, 5), (0.75, 16, 2), (2.0, 5, 1)]
    first_two = plan_of({}, {"dataset_name": "csv-trace", "dataset_path": str(path), "num_prompts": 2})
    assert sent(first_two) == simulated(read_trace(path, max_requests=2))


def test_the_command_simulates_what_the_load_test_of_the_same_flags_sends(tmp_path: Path) -> None:
    target = tmp_path / "simulated.json"
    flags = {"num-prompts": "40", "request-rate": "3", "burstiness": "0.5", "seed": "5"}
    argv = [text for name, value in flags.items() for text in (f"--{name}", value)]
    lengths = ["--random-input-len", "50:150", "--random-output-len", "5:15"]
    main(["simulate", "llama-1b", *argv, *lengths, "--json", str(target)])
    figures = json.loads(target.read_text())
    plan = plan_of(
        {"request_rate": 3.0, "burstiness": 0.5},
        {"num_prompts": 40, "random_input_len": 100, "random_output_len": 10, "random_range_ratio": 0.5},
        seed=5,
    )
    assert figures["completed"] == 40
    assert figures["total_input_tokens"] == sum(map(len, prompts(plan)))
    assert figures["total_output_tokens"] == sum(output for _, _, output in sent(plan))
    last_s = sent(plan)[-1][0]
    assert last_s < figures["duration"] <= last_s + figures["p99_e2el_ms"] / 1e3 * 2
