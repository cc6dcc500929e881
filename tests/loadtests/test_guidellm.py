"""One server measured by guidellm and by this project: the comparison itself, and a real one if guidellm is installed.

The real one compares what was sent and generated. `python -m tools.guidellm_check` prints times on a quiet host; no
test depends on them.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import pytest
from rich.console import Console

from neuronserve.loadtests.local_server import mock_command, neuronserve_command, running
from tools.guidellm_check import (
    DEFAULT_MODEL,
    LIMITS,
    ConstantLoad,
    Figures,
    compare,
    in_turns,
    measure_ours,
    ratios,
    table,
)


def figures(throughput: float, ttft_ms: float, tpot_ms: float) -> Figures:
    return {
        "completed": 4,
        "total_output_tokens": 40,
        "output_throughput": throughput,
        "median_ttft_ms": ttft_ms,
        "median_tpot_ms": tpot_ms,
    }


def test_the_first_of_a_round_changes_and_pairs_are_ours_then_theirs() -> None:
    order: list[str] = []

    def measure(name: str, value: float) -> Figures:
        order.append(name)
        return figures(value, value, value)

    pairs = in_turns(lambda: measure("ours", 1.0), lambda: measure("theirs", 2.0), 3)
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert all((ours["output_throughput"], theirs["output_throughput"]) == (1.0, 2.0) for ours, theirs in pairs)


def test_a_ratio_is_the_geometric_mean_of_the_rounds() -> None:
    pairs = [(figures(10, 1, 1), figures(20, 1, 2)), (figures(20, 1, 3), figures(10, 1, 3))]
    assert ratios(pairs) == pytest.approx({"output_throughput": 1.0, "median_ttft_ms": 1.0, "median_tpot_ms": 0.5**0.5})


@pytest.mark.parametrize(
    ("ours", "num_apart"),
    [((100, 10, 5), 0), ((104.9, 10.9, 4.6), 0), ((106, 10, 5), 1), ((100, 11.2, 4.4), 2)],
)
def test_the_table_says_which_figures_are_apart(ours: tuple[float, float, float], num_apart: int) -> None:
    written = io.StringIO()
    Console(width=120, file=written).print(table([(figures(*ours), figures(100, 10, 5))]))
    text = written.getvalue()
    assert text.count("APART") == num_apart
    assert text.count("agree") == len(LIMITS) - num_apart + 1  # and the heading


def test_our_side_reports_what_it_sent(tmp_path: Path) -> None:
    with running(mock_command(ttft_ms=2, itl_ms=1)) as url:
        found = measure_ours(url, ConstantLoad(50, 8, 16, 6), tmp_path)
    assert (found["completed"], found["total_output_tokens"]) == (8, 48)
    assert all(found[name] > 0 for name in LIMITS)


def test_a_server_that_is_away_is_said_in_our_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the load test ended with code"):
        measure_ours("http://127.0.0.1:9", ConstantLoad(50, 2, 16, 6), tmp_path)


@pytest.mark.skipif(
    importlib.util.find_spec("guidellm") is None, reason="guidellm is not installed (it is in the extra: bench)"
)
def test_guidellm_sends_and_counts_the_same_at_the_default_model(pytestconfig: pytest.Config) -> None:
    kernels = str(pytestconfig.cache.mkdir("kernels"))
    arguments = [str(DEFAULT_MODEL), "--served-model-name", "checked", "--kernel-cache-dir", kernels]
    with running(neuronserve_command(arguments)) as url:
        [(ours, theirs)] = compare(url, "checked", DEFAULT_MODEL, ConstantLoad(2, 8, 64, 16), rounds=1)
    assert (ours["completed"], ours["total_output_tokens"]) == (8, 8 * 16)
    assert (theirs["completed"], theirs["total_output_tokens"]) == (8, 8 * 16)
    assert all(theirs[name] > 0 for name in LIMITS)
