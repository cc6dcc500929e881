"""The speed of the simulator is measured at the load that is asked for; the figure itself is a measurement."""

from __future__ import annotations

import pytest

from neuronserve.planner.simulate.simulator import run_simulation
from tools.simulate_speed import loaded, main


def test_the_load_is_a_share_of_what_the_replicas_carry() -> None:
    report = run_simulation(loaded("nxdi-vllm", 0.8, 4, 1500))
    busy = sum(engine.num_decode_tokens for engine in report.engines) / sum(e.num_decode_steps for e in report.engines)
    assert 0.4 * 16 < busy < 16
    assert report.completed == 1500


def test_a_line_for_each_stack(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--requests", "50", "--replicas", "2", "--stack", "tgi", "ideal"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["tgi", "ideal", "host:"]
    assert all("a million in" in line for line in lines[:2])
