"""calibrate as a user meets it: a fit and a check of a file, as numbers, JSON and tables."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from server.cost.calibration import Calibration, default_calibration
from server.errors import SettingsError
from server.planner.calibrate.report import CalibrationReport, run_calibrate, run_check
from server.planner.calibrate.table import render

SAMPLE = Path(__file__).parent / "published_sample.csv"
GROUPS = {"decode_dense_inf2", "decode_trn1", "prefill_dense_inf2", "prefill_trn1"}


@pytest.fixture(scope="module")
def fitted() -> CalibrationReport:
    return run_calibrate(SAMPLE, date="2026-01-02")


def text_of(report: CalibrationReport) -> str:
    out = StringIO()
    Console(file=out, width=200).print(render(report))
    return out.getvalue()


def test_the_shipped_calibration_holds_on_a_sample_of_what_it_was_fitted_to() -> None:
    report = run_check(SAMPLE)
    assert report.groups["decode_dense_inf2"].all.median <= 0.07
    assert report.groups["decode_dense_inf2"].all.mean <= 0.09
    assert report.groups["decode_trn1"].all.mean <= 0.15
    assert report.groups["prefill_dense_inf2"].all.mean <= 0.15
    assert report.calibration is default_calibration()


def test_a_fit_to_fifty_rows_predicts_models_it_did_not_see(fitted: CalibrationReport) -> None:
    held = fitted.groups["decode_dense_inf2"].left_out
    assert held is not None
    assert held.mean <= 0.10


def test_a_check_never_fits(fitted: CalibrationReport) -> None:
    checked = run_check(SAMPLE, fitted.calibration)
    assert checked.calibration == fitted.calibration
    assert {name: group.all for name, group in checked.groups.items()} == {
        name: group.all for name, group in fitted.groups.items()
    }
    assert all(group.left_out is None for group in checked.groups.values())


def test_group_figures_are_those_of_their_rows(fitted: CalibrationReport) -> None:
    assert set(fitted.groups) == GROUPS
    for name, group in fitted.groups.items():
        errors = [abs(row.predicted_ms / row.measured_ms - 1) for row in fitted.rows if row.group == name]
        assert group.n == len(errors)
        assert group.all.mean == pytest.approx(np.mean(errors))
        assert group.all.median == pytest.approx(np.median(errors))
        assert group.all.p90 == pytest.approx(np.quantile(errors, 0.9))


def test_every_row_is_compared_or_skipped_with_a_reason(fitted: CalibrationReport) -> None:
    num_rows = len(SAMPLE.read_text().splitlines()) - 1
    assert len(fitted.rows) + len(fitted.skipped) == 2 * num_rows
    assert all(reason for _, reason in fitted.skipped)
    assert "843" not in {row.row_id for row in fitted.rows}  # the garbage row with a negative TTFT


def test_the_json_is_plain_and_carries_the_calibration(fitted: CalibrationReport) -> None:
    record = json.loads(json.dumps(fitted.as_json()))
    assert set(record["groups"]) == GROUPS
    assert {"n", "mean", "median", "p90"} <= set(record["groups"]["decode_trn1"])
    assert record["rows"][0].keys() >= {"row_id", "group", "measured_ms", "predicted_ms", "error"}
    assert Calibration.from_json(json.dumps(record), "report") == fitted.calibration
    assert set(json.loads(json.dumps(run_check(SAMPLE).as_json()))["groups"]["decode_trn1"]) == {
        "n", "mean", "median", "p90",
    }  # fmt: skip


def test_the_calibration_names_its_data_and_date(fitted: CalibrationReport) -> None:
    assert fitted.calibration.version.startswith("2-2026-01-02-")
    assert fitted.calibration.num_rows == len({row.row_id for row in fitted.rows})
    assert run_calibrate(SAMPLE).calibration.coefficients == fitted.calibration.coefficients


def test_the_tables_show_groups_rows_and_coefficients(fitted: CalibrationReport) -> None:
    fit_text, check_text = text_of(fitted), text_of(run_check(SAMPLE))
    assert "memory_efficiency" in fit_text
    assert "model left out" in fit_text
    assert "memory_efficiency" not in check_text
    for text in (fit_text, check_text):
        assert "decode_dense_inf2" in text
        assert f"{len(fitted.rows)} times and 0 figures of load tests" in text


def test_one_model_alone_has_nothing_left_out(tmp_path: Path) -> None:
    lines = SAMPLE.read_text().splitlines(keepends=True)
    alone = tmp_path / "one.csv"
    alone.write_text(lines[0] + "".join(line for line in lines if "Llama-2-70b" in line))
    report = run_calibrate(alone)
    assert all(group.left_out is None for group in report.groups.values())
    assert "nan%" in text_of(report)


def test_a_file_with_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    lines = SAMPLE.read_text().splitlines(keepends=True)
    useless = tmp_path / "none.csv"
    useless.write_text(lines[0] + "".join(line for line in lines if "Mixtral" in line))
    for run in (run_calibrate, run_check):
        with pytest.raises(
            SettingsError, match=r"none of the 1 rows of .*is usable; the first: decode: use_decode_fit"
        ):
            run(useless)
