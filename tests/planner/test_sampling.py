"""Some of many equal slices of a deployment: what they say of the whole, and how sure that is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from neuronserve.cli import main
from neuronserve.planner.settings.simulate import SimulateSettings
from neuronserve.planner.simulate.sampling import Sample, run_sample
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.server.cost.spread import student_p975
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.sources import load_settings

FLEET = "simulate llama-1b --replicas 24 --num-prompts 4800 --request-rate 96 --max-num-seqs 8 --max-model-len 1024"
LOAD = "--random-input-len 100:600 --random-output-len 20:120 --node-mtbf-h 0.1 --detection-s 2 --routing prefix-aware"


def settings(*more: str) -> SimulateSettings:
    return load_settings(SimulateSettings, [*FLEET.split()[1:], *LOAD.split(), *more])


def test_slices_agree_with_the_whole_within_their_interval() -> None:
    """The whole is simulated too, with one router in front of all replicas."""
    whole = run_simulation(settings().options).as_json()
    sampled = settings("--sample", "2/3").slices
    assert sampled is not None
    figures = run_sample(*sampled)
    for name in ("completed", "total_output_tokens", "total_usd", "mean_tpot_ms", "usd_per_million_output_tokens"):
        assert abs(figures[name].value - whole[name]) <= max(figures[name].half, 0.03 * whole[name]), name
    assert figures["moved_requests"].value > 0
    assert figures["mean_ttft_ms"].value >= 0.97 * whole["mean_ttft_ms"]  # a smaller cell queues more


def test_the_interval_is_students_and_closes_when_all_slices_are_simulated() -> None:
    values = [3.0, 4.5, 2.5, 4.0]
    some = Sample(4, 10**6).estimate("mean_ttft_ms", values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (some.value - some.half, some.value + some.half) == pytest.approx((low, high), rel=1e-3)
    assert Sample(4, 4).estimate("mean_ttft_ms", values).half == 0
    assert Sample(4, 100).estimate("total_usd", values).value == pytest.approx(350)


def test_the_quantiles_are_students_and_need_no_scipy() -> None:
    degrees = range(1, 400)
    want = stats.t.ppf(0.975, degrees).tolist()
    assert [student_p975(count) for count in degrees] == pytest.approx(want, rel=1e-3)
    code = "import sys, neuronserve.planner.command; print('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_nineteen_of_twenty_intervals_have_the_truth() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        slices = random.gamma(20, size=40)
        found = Sample(5, 40).estimate("total_usd", slices[:5].tolist())
        hits += abs(found.value - slices.sum()) <= found.half
    assert 930 <= hits <= 970


def test_slices_are_equal_parts_with_seeds_of_their_own() -> None:
    sampled = settings("--sample", "3/8").slices
    assert sampled is not None
    found = list(sampled[1])
    assert {each.replicas for each in found} == {3}
    assert {len(each.workload) for each in found} == {600}
    assert len({each.failures.seed for each in found}) == 3
    assert all(each.workload.rate == pytest.approx(12, rel=0.15) for each in found)
    again = settings("--sample", "3/8").slices
    assert again is not None
    assert [each.failures for each in again[1]] == [each.failures for each in found]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--sample 1/8", "sample is '1/8': it is SLICES/ALL, with at least 2 SLICES and at most ALL"),
        ("--sample 9/8", "sample is '9/8'"),
        ("--sample half", "sample is 'half'"),
        ("--sample 2/7", "replicas is 24: it is no multiple of the 7 slices of sample"),
        ("--sample 2/8 --burstiness 2", "sample is 2/8: it is of arrivals with burstiness 1"),
        (
            "--sample 2/8 --autoscale keda --min-replicas 8 --max-replicas 20",
            "max_replicas is 20: it is no multiple of the 8",
        ),
    ],
)
def test_what_has_no_equal_slices_is_refused(argv: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        list((settings(*argv.split()).slices or ((), ()))[1])


def test_the_command_prints_figures_of_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "sample.json"
    main([*FLEET.split(), "--sample", "2/24", "--ttft-ms", "900", "--json", str(target)])
    found = json.loads(target.read_text())
    assert found["sample"] == {"num_slices": 2, "num_all": 24}
    assert found["figures"]["completed"] == {"value": 4800, "half": 0}
    assert 0 < found["figures"]["ttft_attainment"]["value"] <= 1
    assert "2 of 24 slices" in capsys.readouterr().out
