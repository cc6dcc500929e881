"""Published GPU figures: the table, the rows beside a plan, and the output of `plan --gpus`."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from datetime import date
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from neuronserve.cli import main
from neuronserve.planner.references import MAX_RATIO, NONE_NEAR, NUM_NEAREST, Reference, nearest, prices, references


def test_the_file_has_rows_of_the_families_asked_for() -> None:
    raw = json.loads(files("neuronserve.planner").joinpath("references.json").read_text(encoding="utf-8"))
    names = {field.name for field in fields(Reference)}
    assert all(row.keys() <= names for row in raw["rows"])
    assert {row.instance.partition(".")[0] for row in references()} == {"g5", "g6", "g6e", "p4d", "p5"}
    assert len(set(references())) == len(references())


@pytest.mark.parametrize("row", references(), ids=lambda row: f"{row.model} {row.instance} {row.load}")
def test_each_row_has_a_source_a_date_a_price_and_figures_that_can_be(row: Reference) -> None:
    assert urlsplit(row.source).scheme == "https"
    assert urlsplit(row.source).path.strip("/")
    assert date.fromisoformat(row.date) <= date(2026, 12, 31)
    assert row.instance in prices().hourly_usd
    assert 1 <= row.gpus <= 8
    assert row.params_b > 0
    assert row.output_tokens_s > 0
    for value in (row.input_tokens, row.output_tokens, row.tpot_ms, row.ttft_ms):
        assert value is None or value > 0


def test_every_price_is_of_a_row_and_dated() -> None:
    assert prices().hourly_usd.keys() == {row.instance for row in references()}
    assert date.fromisoformat(prices().date)
    assert urlsplit(prices().source).scheme == "https"


def test_dollars_by_hand() -> None:
    (row,) = [row for row in references() if row.model == "Llama-3-8B"]
    # 441.76 tokens/s are 1.590336 million an hour, for $5.672.
    assert row.usd_per_million() == pytest.approx(5.672 / 1.590336)


def test_the_nearest_come_first_and_those_of_another_size_not_at_all() -> None:
    rows = nearest(8_030_000_000, count=1000)
    ratios = [abs(math.log(row.params_b / 8.03)) for row in rows]
    assert ratios == sorted(ratios)
    assert len(rows) == sum(8.03 / MAX_RATIO <= row.params_b <= 8.03 * MAX_RATIO for row in references())
    assert nearest(8_030_000_000) == rows[:NUM_NEAREST]
    assert rows[0].params_b == 8.03
    assert nearest(500_000_000) == ()


def test_plan_prints_them_beside_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    argv = ["plan", "llama-8b", "--device", "inf2.48xlarge", "--tensor-parallel-size", "8", "--json", str(out)]
    assert main([*argv, "--gpus"]) == 0
    table = capsys.readouterr().out
    rows = nearest(8_030_261_248)
    assert "Not comparable one to one" in table
    for row in rows:
        assert row.instance in table
        assert row.source in table.replace("\n", "")
    written = json.loads(out.read_text())["gpus"]
    assert [row["source"] for row in written] == [row.source for row in rows]
    assert written[0]["price"]["hourly_usd"] == prices().hourly_usd[rows[0].instance]
    assert main(argv) == 0
    assert "Not comparable" not in capsys.readouterr().out
    assert "gpus" not in json.loads(out.read_text())


def test_plan_says_when_there_are_none_of_the_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "qwen-0.5b", "--device", "inf2.xlarge", "--gpus"]) == 0
    assert NONE_NEAR in capsys.readouterr().out
