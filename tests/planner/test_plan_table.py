"""A plan in a terminal: no figure is cut at any width; the recommendation and its command come first."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from neuronserve.planner.plan.columns import band, figure
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.recommendation import evidence, first_lines, serve_command
from neuronserve.planner.plan.report import PlanReport
from neuronserve.planner.plan.search import plan
from neuronserve.planner.plan.table import WIDE, best_batches, render
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings

CHAT = PlanOptions("llama-3.1-8b", 1000, 200, 4.0, tpot_s=0.05)
QUESTIONS = {
    "chat": CHAT,
    "many": replace(CHAT, request_rate=1e5),
    "few": replace(CHAT, request_rate=1e-3, devices=("inf2.xlarge", "trn1.2xlarge")),
    "stages": replace(CHAT, pipeline_parallel_sizes=(1, 2), devices=("inf2.48xlarge", "trn2u.48xlarge")),
    "no price": replace(CHAT, devices=("trn3-gen2",)),
}


@pytest.fixture(scope="module")
def reports() -> Callable[[str], PlanReport]:
    kept: dict[str, PlanReport] = {}

    def of(name: str) -> PlanReport:
        if name not in kept:
            kept[name] = plan(QUESTIONS[name])
        return kept[name]

    return of


def lines(report: PlanReport, width: int, is_wide: bool = False) -> list[str]:
    out = StringIO()
    Console(width=width, file=out).print(render(report, width, is_wide), crop=False)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100, 120, WIDE])
@pytest.mark.parametrize("name", QUESTIONS)
def test_no_figure_is_cut_or_blank(reports: Callable[[str], PlanReport], name: str, width: int) -> None:
    report = reports(name)
    text = lines(report, width)
    assert not any("\u2026" in line for line in text)
    assert all(len(line) <= width or "https://" in line for line in text)
    head = next(at for at, line in enumerate(text) if line.startswith("device "))
    rows = [row for row in best_batches(report.candidates) if row.meets_slo][:20]
    for row, line in zip(rows, text[head + 2 :], strict=False):
        cells = line.split()
        assert len(cells) == len(text[head].split())
        assert cells[:2] == [row.device, str(row.tp)]
        for value in (figure(row.ttft_s * 1e3), figure(row.tpot_s * 1e3), str(row.instances), band(*row.known.tpot_s)):
            assert value in cells


def test_more_room_shows_more_columns(reports: Callable[[str], PlanReport]) -> None:
    heads = [
        next(line for line in lines(reports("chat"), width) if line.startswith("device ")).split()
        for width in (80, 100, 120, WIDE)
    ]
    assert [len(head) for head in heads] == sorted(len(head) for head in heads)
    assert len(heads[0]) < len(heads[2]) < len(heads[3])
    assert {"stack", "load", "runs", "DP"} <= set(heads[3])


def test_the_first_lines_say_what_to_take_and_what_is_behind_it(reports: Callable[[str], PlanReport]) -> None:
    report = reports("chat")
    best = report.candidates[0]
    said = " ".join(lines(report, 120))
    assert said.startswith(f"Take {best.instances} x {best.device}, each {best.dp} x TP{best.tp} of {best.batch} slots")
    assert f"(P10-P90 {band(*best.known.ttft_s)})" in said
    assert f"TPOT {evidence(best.known.decode)}" in said


def test_what_is_measured_says_by_how_many_rows(reports: Callable[[str], PlanReport]) -> None:
    found = [row.known.decode for row in reports("chat").candidates if row.known.decode.provenance == "measured"]
    many, one = replace(found[0], num_rows=28), replace(found[0], num_rows=1)
    assert evidence(many) == f"measured: 28 rows, nearest {many.nearest}"
    assert evidence(one) == f"measured: 1 row, nearest {many.nearest}"
    assert evidence(replace(one, provenance="formula")).startswith("by formula: 1 row, nearest")


def test_no_configuration_within_the_limits_is_said_first() -> None:
    report = plan(replace(QUESTIONS["few"], tpot_s=1e-4))
    assert " ".join(first_lines(report)).startswith("No configuration holds the limits. The first (TPOT is ")


@pytest.mark.parametrize("name", ["chat", "no price"])
def test_the_serve_command_is_the_row(reports: Callable[[str], PlanReport], name: str) -> None:
    report = reports(name)
    command = serve_command(report)
    if report.candidates[0].dp > 64:
        assert command == ""
        return
    assert all(len(line) <= 78 for line in command.splitlines())
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["neuronserve", "serve", "meta-llama/Llama-3.1-8B"]
    settings, best = load_settings(ServeSettings, words[2:]), report.candidates[0]
    assert (settings.device, settings.tensor_parallel_size, settings.data_parallel_size) == (
        *(best.device, best.tp),
        best.dp,
    )
    assert (settings.max_num_seqs, settings.max_model_len) == (best.batch, report.buckets.decode)
    assert (settings.stack, settings.pace) == (best.stack, "device")


def test_what_cannot_be_had_is_counted_and_listed_when_asked(reports: Callable[[str], PlanReport]) -> None:
    report = reports("chat")
    assert any(f"{len(report.excluded)} configurations are excluded" in line for line in lines(report, 120))
    assert "Excluded" in lines(report, WIDE, is_wide=True)


def test_notes_name_flags_and_give_reasons_once(reports: Callable[[str], PlanReport]) -> None:
    notes = [line for line in lines(reports("no price"), 1000) if line.startswith("- ")]
    assert len(set(notes)) == len(notes)
    assert any("on Trainium3 is among the measurements (trn3-gen2 TP" in note for note in notes)
    assert any("--chip-watts" in note for note in notes)
    assert not any("chip_watts" in note or "*" in note for note in notes)


@given(st.floats(1e-9, 1e9))
def test_a_figure_has_three_digits_and_no_exponent(value: float) -> None:
    text = figure(value)
    assert "e" not in text
    assert isfinite(float(text))
    assert float(text) == pytest.approx(value, rel=0.0051)
