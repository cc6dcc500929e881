"""Reports on whether a planned configuration runs on the real accelerator, with source and date."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from neuronserve.cli import main
from neuronserve.console.planning import plan_part
from neuronserve.console.question import Question
from neuronserve.planner.plan.options import Buckets, PlanOptions
from neuronserve.planner.plan.recommendation import first_lines
from neuronserve.planner.plan.report import PlanReport
from neuronserve.planner.plan.running import Running
from neuronserve.planner.plan.search import plan
from neuronserve.planner.plan.table import run_notes

PLACE = ("device", "tp", "pp", "dtype")
DEVICES = ("inf2.48xlarge", "trn1.2xlarge", "trn1.32xlarge")


@pytest.fixture(scope="module")
def chat() -> PlanReport:
    return plan(PlanOptions("llama-8b", devices=DEVICES, dtypes=("bfloat16", "int8")))


def test_rows_are_known_to_run_where_they_were_measured(chat: PlanReport) -> None:
    outcomes = {place[:2]: found.outcome for place, found in sorted(chat.verdicts.items(), reverse=True)}
    assert {tp for (device, tp), outcome in outcomes.items() if outcome == "known to run" and device == DEVICES[0]} == {
        *(2, 8, 24)
    }
    assert outcomes["inf2.48xlarge", 4] == "not known"
    assert (outcomes["trn1.2xlarge", 1], outcomes["trn1.2xlarge", 2]) == ("known not to run", "not known")
    assert {row.place for row in chat.candidates} == chat.verdicts.keys()


def test_pipeline_stages_were_not_measured() -> None:
    options = PlanOptions("llama-8b", devices=("inf2.48xlarge",), pipeline_parallel_sizes=(1, 2), dtypes=("bfloat16",))
    report = plan(options)
    outcomes = {(tp, pp): found.outcome for (_, tp, pp, _), found in report.verdicts.items()}
    assert outcomes[8, 1] == "known to run"
    assert outcomes[8, 2] == "not known"
    assert any("no pipeline stages" in note and "TP 8 PP 2" in note for note in run_notes(report, report.candidates))


def test_the_compiled_length_counts(chat: PlanReport) -> None:
    place = ("inf2.48xlarge", 8, 1, "bfloat16")
    for length, outcome in ((32_768, "known to run"), (65_536, "known not to run")):
        assert replace(chat, buckets=Buckets(length, length)).verdicts[place].outcome == outcome


def test_notes_come_once_and_name_all_that_they_are_about(chat: PlanReport) -> None:
    notes = list(run_notes(chat, chat.candidates))
    assert len(set(notes)) == len(notes)
    (killed,) = [note for note in notes if "issues/1222" in note]
    assert killed.startswith("trn1.2xlarge TP 1 int8: known not to run (SDK 2.28.1): ")
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
    entries = {tuple(entry[name] for name in PLACE): entry for entry in written["will_run"]}
    for row in written["candidates"]:
        assert row["runs"] == entries[tuple(row[name] for name in PLACE)]["outcome"]
    (fact,) = entries["trn1.2xlarge", 1, 1, "int8"]["facts"]
    assert (fact["source"], fact["date"]) == ("https://github.com/aws-neuron/aws-neuron-sdk/issues/1222", "2025-08-26")


@pytest.fixture(scope="module")
def beyond() -> PlanReport:
    """Llama-3.1-8B with 4,096 positions, which Inf2 at TP 2 is reported not to compile."""
    devices = ("inf2.xlarge", "inf2.48xlarge")
    return plan(PlanOptions("llama-8b", devices=devices, dtypes=("bfloat16",), max_model_len=4096))


def test_a_row_with_a_known_failure_says_so_and_ranks_behind(beyond: PlanReport) -> None:
    failing = [row for row in beyond.candidates if row.running.runs == "no"]
    assert {row.tp for row in failing} == {2}
    assert all("NCC_INLA001" in row.running.reason and "torchneuronx" in row.running.reason for row in failing)
    for meets in (True, False):
        rows = [row.running.runs == "no" for row in beyond.candidates if row.meets_slo is meets]
        assert rows == sorted(rows)
    assert beyond.candidates[0].running.runs != "no"
    assert any(row["running"]["runs"] == "no" for row in beyond.as_json()["candidates"])


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
    assert not any(row.running.runs == "no" for row in plan(options).candidates)
    assert all("ValueError" in row.running.reason for row in plan(replace(options, stack="vllm-neuron")).candidates)


def test_what_is_known_to_run_comes_before_what_is_cheaper(chat: PlanReport) -> None:
    rows = [row for row in chat.candidates if row.meets_slo]
    priced = [row for row in rows if row.at_rate["on_demand"] is not None and row.running.runs != "no"]
    ranks = [row.running.rank for row in priced]
    assert ranks == sorted(ranks)
    assert rows[: len(priced)] == priced, "rows without a price come behind"
    costs = [row.at_rate["on_demand"].hourly_usd for row in priced]  # type: ignore[union-attr]
    assert min(costs) < costs[0], "the cheapest row is one of which no report is"
    head, runs, *_, cheaper = first_lines(chat)
    assert head.startswith("Take ")
    assert runs == chat.candidates[0].running.sentence
    assert cheaper.startswith("Cheaper, but less is known: ")


def test_a_report_of_the_same_graph_on_another_instance_counts() -> None:
    report = plan(PlanOptions("llama-8b", devices=("inf2.24xlarge", "inf2.48xlarge"), tensor_parallel_sizes=(4, 8)))
    found = {(row.device, row.tp, row.dtype): row.running for row in report.candidates}
    outcomes = {place: running.runs for place, running in found.items()}
    assert outcomes["inf2.48xlarge", 8, "bfloat16"] == "yes"
    assert outcomes["inf2.24xlarge", 8, "bfloat16"] == "likely"
    assert "on inf2.48xlarge; no report is of inf2.24xlarge" in found["inf2.24xlarge", 8, "bfloat16"].reason
    assert outcomes["inf2.48xlarge", 4, "bfloat16"] == "?"
    assert outcomes["inf2.48xlarge", 8, "int8"] == "?", "weights of 8 bits were not measured there"


def test_terminal_pages_and_files_give_one_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The weights of fp8 that vLLM cannot compile: the second line, the README beside the script, and the page."""
    argv = ["plan", "llama-8b", "--device", "trn2.3xlarge", "--tensor-parallel-size", "4", "--quantization", "fp8"]
    assert main([*argv, "--stack", "nxdi-vllm", "--emit", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out.split("\n\n")[0]
    said = "".join(text.split())
    assert "vLLMcannotcompilefp8weights" in said.partition("TTFT")[0]
    readme = " ".join((tmp_path / "out" / "README.md").read_text().split())
    options = {"model": "llama-8b", "dtypes": ("fp8",), "stack": "nxdi-vllm", "tensor_parallel_sizes": (4,)}
    row = min(plan_part(Question(options), "trn2.3xlarge")["rows"], key=lambda row: row["order"])
    assert "Before it runs: vLLM cannot compile fp8 weights" in row["running"]
    assert row["running"] in readme
    assert "".join(row["running"].split()) in said


def test_the_exit_code_says_whether_a_row_holds_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", "llama-8b", "--device", "inf2.48xlarge", "--tensor-parallel-size", "8", "--ttft-ms"]
    assert main([*argv, "10000"]) == 0
    assert main([*argv, "0.1"]) == 1
    assert capsys.readouterr().out.count("No configuration holds the limits") == 1


def test_a_blocker_that_somebody_has_met_is_a_condition_and_any_other_ranks_behind() -> None:
    verdicts = [("yes", ("a",)), ("yes", ()), ("likely", ()), ("?", ()), ("?", ("a",)), ("likely", ("a",)), ("no", ())]
    ranks = [Running(runs, "", blockers).rank for runs, blockers in verdicts]  # type: ignore[arg-type]
    assert ranks == [0, 0, 0, 1, 2, 2, 3]
