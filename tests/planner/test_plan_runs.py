"""Reports on whether a planned configuration runs on the real accelerator, with source and date."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from neuronserve.cli import main
from neuronserve.planner.plan.options import Buckets, PlanOptions
from neuronserve.planner.plan.report import PlanReport
from neuronserve.planner.plan.search import plan
from neuronserve.planner.plan.table import run_notes

DEVICES = ("inf2.48xlarge", "trn1.2xlarge", "trn1.32xlarge")


@pytest.fixture(scope="module")
def chat() -> PlanReport:
    return plan(PlanOptions("llama-8b", devices=DEVICES, dtypes=("bfloat16", "int8")))


def test_rows_are_known_to_run_where_they_were_measured(chat: PlanReport) -> None:
    outcomes = {(device, tp): found.outcome for (device, tp, _), found in chat.verdicts.items()}
    assert {tp for (device, tp), outcome in outcomes.items() if outcome == "known to run" and device == DEVICES[0]} == {
        *(2, 8, 24)
    }
    assert outcomes["inf2.48xlarge", 4] == "not known"
    assert (outcomes["trn1.2xlarge", 1], outcomes["trn1.2xlarge", 2]) == ("known not to run", "not known")
    assert {row.place for row in chat.candidates} == chat.verdicts.keys()


def test_pipeline_stages_were_not_measured() -> None:
    options = PlanOptions("llama-8b", devices=("inf2.48xlarge",), pipeline_parallel_sizes=(1, 2), dtypes=("bfloat16",))
    report = plan(options)
    outcomes = {(tp, pp): found.outcome for (_, tp, pp), found in report.verdicts.items()}
    assert outcomes[8, 1] == "known to run"
    assert outcomes[8, 2] == "not known"
    assert any("no pipeline stages" in note and "TP 8 PP 2" in note for note in run_notes(report, report.candidates))


def test_the_compiled_length_counts(chat: PlanReport) -> None:
    place = ("inf2.48xlarge", 8, 1)
    for length, outcome in ((32_768, "known to run"), (65_536, "known not to run")):
        assert replace(chat, buckets=Buckets(length, length)).verdicts[place].outcome == outcome


def test_notes_come_once_and_name_all_that_they_are_about(chat: PlanReport) -> None:
    notes = list(run_notes(chat, chat.candidates))
    assert len(set(notes)) == len(notes)
    (killed,) = [note for note in notes if "issues/1222" in note]
    assert killed.startswith("trn1.2xlarge TP 1: known not to run (SDK 2.28.1): ")
    (dropped,) = [note for note in notes if "Trn2 and newer only" in note]
    assert "Inferentia2" in dropped
    assert "Trainium1" in dropped


def test_table_and_json_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    argv = ["plan", "llama-8b", "--tensor-parallel-size", "1,8", "--json", str(out)]
    assert main([*argv, *(word for device in DEVICES for word in ("--device", device))]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "known not to run (SDK 2.28.1): compiling is killed" in table
    assert "critical security and bug fixes only" in table
    written = json.loads(out.read_text())
    entries = {(entry["device"], entry["tp"], entry["pp"]): entry for entry in written["will_run"]}
    for row in written["candidates"]:
        assert row["runs"] == entries[row["device"], row["tp"], row["pp"]]["outcome"]
    (fact,) = entries["trn1.2xlarge", 1, 1]["facts"]
    assert (fact["source"], fact["date"]) == ("https://github.com/aws-neuron/aws-neuron-sdk/issues/1222", "2025-08-26")
