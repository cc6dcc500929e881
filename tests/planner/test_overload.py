"""Arrivals that a simulated deployment cannot keep up with are reported as that, with a rate that it can."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from neuronserve.cli import main
from neuronserve.planner.simulate.overload import overload_of
from neuronserve.server.clock import NS

SIMULATE = ["simulate", "llama-8b", "--device", "inf2.xlarge", "--tensor-parallel-size", "2", "--max-num-seqs", "4"]
SIMULATE += ["--random-input-len", "200", "--random-output-len", "50", "--num-prompts", "400", "--request-rate"]


def test_an_overloaded_deployment_says_so_first_and_keeps_up_at_the_rate_that_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, object] = {}
    for rate in ("20", ""):
        out = tmp_path / "simulated.json"
        asked = rate or str(0.9 * found["served_per_s"])  # type: ignore[operator]
        assert main([*SIMULATE, asked, "--json", str(out)]) == 0
        text = capsys.readouterr().out
        overload = json.loads(out.read_text())["overload"]
        assert text.startswith("OVERLOADED: ") == bool(rate)
        assert (overload is not None) == bool(rate)
        found = overload or found


@pytest.mark.parametrize(("service_s", "is_overloaded"), [(0.5, False), (0.99, False), (1.5, True)])
def test_a_queue_that_grows_is_an_overload_and_a_burst_is_none(service_s: float, is_overloaded: bool) -> None:
    arrivals = np.arange(1000, dtype=np.int64) * NS
    ends = np.zeros(1000)
    free = 0.0
    for i in range(1000):
        free = max(free, float(i)) + service_s
        ends[i] = free
    found = overload_of(arrivals, (ends * NS).astype(np.int64), 4)
    assert (found is not None) == is_overloaded
    if found is not None:
        assert found.offered_per_s == pytest.approx(1.0)
        assert found.served_per_s == pytest.approx(1 / service_s, rel=0.01)
    assert overload_of(arrivals * 0, arrivals, 4) is None
