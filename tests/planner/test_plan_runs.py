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


@pytest.fixture(scope="module")
def beyond() -> PlanReport:
    """Llama-3.1-8B with 4,096 positions, which Inf2 at TP 2 is reported not to compile."""
    devices = ("inf2.xlarge", "inf2.48xlarge")
    return plan(PlanOptions("llama-8b", devices=devices, dtypes=("bfloat16",), max_model_len=4096))


def test_a_row_with_a_known_failure_says_so_and_ranks_behind(beyond: PlanReport) -> None:
    failing = [row for row in beyond.candidates if row.known_failure]
    assert {row.tp for row in failing} == {2}
    assert all("NCC_INLA001" in row.known_failure and "torchneuronx" in row.known_failure for row in failing)
    for meets in (True, False):
        rows = [bool(row.known_failure) for row in beyond.candidates if row.meets_slo is meets]
        assert rows == sorted(rows)
    assert not beyond.candidates[0].known_failure
    assert any(row["known_failure"] for row in beyond.as_json()["candidates"])


def test_a_recommended_row_with_a_known_failure_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", "llama-8b", "--device", "inf2.xlarge", "--tensor-parallel-size", "2", "--max-model-len"]
    assert main([*argv, "4096"]) == 0
    first = " ".join(capsys.readouterr().out.split()).partition(" Within the limits")[0]
    assert "A real accelerator is known not to run it" in first
    assert "NCC_INLA001" in first
    assert main([*argv, "2048"]) == 0
    assert "NCC_INLA001" not in capsys.readouterr().out


def test_a_failure_of_a_stack_counts_for_that_stack() -> None:
    options = PlanOptions("llama-8b", devices=("inf2.48xlarge",), tensor_parallel_sizes=(8,), dtypes=("bfloat16",))
    assert not any(row.known_failure for row in plan(options).candidates)
    assert all("ValueError" in row.known_failure for row in plan(replace(options, stack="vllm-neuron")).candidates)
