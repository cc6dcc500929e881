"""`python -m benchmarks.promises` from the outside: a server for each side, and what a goal is held against."""

from __future__ import annotations

import pytest

from benchmarks import promises
from benchmarks.promises import Row, Side, Stream, main
from neuronserve.loadtests.specs import ArrivalSpec, DatasetSpec

FEW = Stream(DatasetSpec(num_prompts=3, random_input_len=16, random_output_len=4), ArrivalSpec(max_concurrency=2))


@pytest.mark.thorough
@pytest.mark.parametrize(("goal", "code"), [(0.4, 1), (0.5, 0)])
def test_a_row_is_the_first_side_over_the_others(
    goal: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = (Side(("--scheduling-policy", "fcfs"), {"a": FEW}), Side((), {"a": FEW, "b": FEW}))
    row = Row("few", sides, lambda found: sum(each["completed"] for each in found.values()), "requests", goal)
    monkeypatch.setattr(promises, "MAX_LAG_MS", 1e4)
    monkeypatch.setattr(promises, "ROWS", (row, *promises.ROWS))
    assert main(["--only", "few"]) == code
    assert capsys.readouterr().out.split() == f"few 3 for 6 requests: 0.500, <= {goal:.3g}".split()


@pytest.mark.parametrize(("is_most", "met"), [(True, [True, True, False]), (False, [False, True, True])])
def test_a_goal_is_a_bound_of_the_ratio_to_the_best(is_most: bool, met: list[bool]) -> None:
    row = Row("", (), lambda _: 0.0, "", 1.5, is_most=is_most)
    assert [row.is_met(ratio) for ratio in (1.4, 1.5, 1.6)] == met
    assert row.best([3.0, 1.0, 2.0]) == (1.0 if is_most else 3.0)
