"""`neuronserve calibrate`: a fit and a check of a file, as numbers, JSON and tables."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from neuronserve.planner.calibrate import report as calibrating
from neuronserve.planner.calibrate import serving_errors
from neuronserve.planner.calibrate.command import render
from neuronserve.planner.calibrate.report import CalibrationReport, run_calibrate, run_check
from neuronserve.server.cost.calibration import Calibration, default_calibration
from neuronserve.server.cost.terms import TERMS
from neuronserve.server.errors import SettingsError

SAMPLE = Path(__file__).parent / "published_sample.csv"
FEW = [str(number) for number in (
    69, 88, 99, 125, 136, 140, 147, 152, 174, 188, 244, 279, 300, 370, 384, 397, 420, 460, 487, 544, 646, 843, 924, 946
)]  # fmt: skip
GROUPS = {"decode_dense_inf2", "decode_trn1", "prefill_dense_inf2", "prefill_trn1", "decode_contradicted_inf2"}
PLAIN = {"six coefficients", "roofline"}


def of_sample(folder: Path, ids: list[str]) -> Path:
    """A table of some of the sample's rows."""
    lines = SAMPLE.read_text().splitlines(keepends=True)
    found = folder / "some.csv"
    found.write_text(lines[0] + "".join(line for line in lines if line.split(",")[0] in ids))
    return found


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_sample(tmp_path_factory.mktemp("few"), FEW)


@pytest.fixture(scope="module")
def fitted(few: Path) -> CalibrationReport:
    return run_calibrate(few, date="2026-01-02")


def text_of(report: CalibrationReport) -> str:
    out = StringIO()
    Console(file=out, width=250).print(render(report))
    return out.getvalue()


def test_the_shipped_calibration_holds_on_a_sample_of_what_it_was_fitted_to() -> None:
    report = run_check(SAMPLE)
    assert report.groups["decode_dense_inf2"].all.mean <= 0.10
    assert report.groups["decode_trn1"].all.mean <= 0.10
    assert report.groups["prefill_dense_inf2"].all.mean <= 0.18
    counts = {name: group.n for name, group in report.groups.items()}
    assert counts["decode_contradicted_inf2"] == 2
    assert counts["decode_moe_inf2"] == counts["decode_moe_trn1"] == counts["prefill_moe_trn2"] == 1
    assert counts["decode_moe_trn2"] == 2
    assert counts["decode_dense_trn2"] == counts["prefill_dense_trn2"] == 1
    assert report.calibration is default_calibration()


def test_a_fit_to_few_rows_predicts_series_sources_and_models_that_it_did_not_see(fitted: CalibrationReport) -> None:
    held = fitted.groups["decode_dense_inf2"].left_out
    assert set(held) == {"series", "source", "model"}
    for stats in held.values():
        assert stats is not None
        assert stats.mean <= 0.3
    assert fitted.groups["decode_dense_inf2"].all.mean <= 0.12


def test_contradicted_rows_are_compared_and_fitted_to_by_nobody(fitted: CalibrationReport, few: Path) -> None:
    group = fitted.groups["decode_contradicted_inf2"]
    assert group.n == 2
    assert set(group.left_out.values()) == {None}
    rows = {row.row_id: row for row in fitted.rows if "contradicted" in row.group}
    assert set(rows) == {"646", "946"}
    assert all(row.left_out is None for row in rows.values())
    doubled = few.with_name("doubled.csv")
    doubled.write_text(few.read_text().replace(",61.1765,", ",611.765,"))
    assert run_calibrate(doubled).calibration.coefficients == pytest.approx(fitted.calibration.coefficients)


def test_plain_models_stand_beside_and_are_worse(fitted: CalibrationReport) -> None:
    assert set(fitted.baselines) >= PLAIN | {"repeated runs"}
    assert all(set(fitted.baselines[name]) == GROUPS for name in PLAIN)
    for stats in (fitted.baselines[name] for name in PLAIN):
        found, unseen = stats["decode_dense_inf2"], fitted.groups["decode_dense_inf2"].left_out["series"]
        assert found is not None
        assert unseen is not None
        assert found.mean > unseen.mean
        assert stats["decode_contradicted_inf2"] is None


def test_a_check_never_fits(fitted: CalibrationReport, few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a check has fitted")

    monkeypatch.setattr("neuronserve.planner.calibrate.fit._least_squares", refuse)
    monkeypatch.setattr(serving_errors, "fit_hosts", refuse)
    monkeypatch.setattr(calibrating, "calibrate_steps", refuse)
    checked = run_check(few, fitted.calibration)
    assert checked.calibration is fitted.calibration
    assert {name: group.all for name, group in checked.groups.items()} == {
        name: group.all for name, group in fitted.groups.items()
    }
    assert all(group.left_out == {} for group in checked.groups.values())
    assert set(checked.baselines) == {"roofline", "repeated runs"}


def test_group_figures_are_those_of_their_rows(fitted: CalibrationReport) -> None:
    assert {name for name in fitted.groups if not name.startswith("serving")} == GROUPS
    for name in GROUPS:
        group, rows = fitted.groups[name], [row for row in fitted.rows if row.group == name]
        errors = np.array([row.predicted_ms / row.measured_ms - 1 for row in rows])
        assert group.n == len(errors)
        assert group.all.mean == pytest.approx(np.abs(errors).mean())
        assert group.all.median == pytest.approx(np.median(np.abs(errors)))
        assert group.all.p90 == pytest.approx(np.quantile(np.abs(errors), 0.9))
        assert group.all.bias == pytest.approx(np.median(errors))
        unseen = group.left_out["series"]
        if unseen is not None:
            assert unseen.mean == pytest.approx(np.mean([abs(row.left_out or 0) for row in rows]))


def test_every_row_is_compared_or_skipped_with_a_reason(fitted: CalibrationReport) -> None:
    skipped = [reason for _, reason in fitted.skipped if not reason.startswith("serving")]
    assert len(fitted.rows) + len(skipped) == 2 * len(FEW)
    assert all(skipped)
    assert "843" not in {row.row_id for row in fitted.rows}  # the garbage row with a negative TTFT
    assert ("924", "decode: tokens were sampled on the host") in fitted.skipped


def test_evidence_is_of_series_that_a_fit_had_not_seen(fitted: CalibrationReport) -> None:
    samples = [each for each in fitted.calibration.evidence.samples if each.point.phase in ("decode", "prefill")]
    by_row = {(row.row_id, row.group.split("_")[0]): row for row in fitted.rows}
    assert sum(each.num_rows for each in samples) == sum(row.left_out is not None for row in fitted.rows)
    (one,) = [
        each for each in samples if each.point.tp == 8 and each.point.batch == 48 and each.point.phase == "decode"
    ]
    row = by_row["188", "decode"]
    assert row.left_out is not None
    assert one.error == pytest.approx(1 / (1 + row.left_out))
    assert abs(one.error - row.measured_ms / row.predicted_ms) > 1e-3, "not the error of the fit to all rows"


def test_the_json_is_plain_and_carries_the_calibration(fitted: CalibrationReport) -> None:
    text = json.dumps(fitted.as_json())
    record = json.loads(text)
    assert set(record["groups"]) >= GROUPS
    assert set(record["groups"]["decode_trn1"]) == {"n", "all", "left_out", "series"}
    assert set(record["groups"]["decode_trn1"]["all"]) == {"mean", "median", "p90", "bias"}
    assert set(record["band_coverage"]) >= GROUPS
    assert set(record["baselines"]) >= PLAIN | {"repeated runs"}
    assert record["rows"][0].keys() >= {"row_id", "group", "measured_ms", "predicted_ms", "error", "left_out"}
    assert Calibration.from_json(text, "report").as_dict() == record["calibration"]


def test_a_check_measures_coverage_on_its_table(fitted: CalibrationReport, few: Path) -> None:
    """Published times ten times longer are outside of every band; the stored coverage would not see it."""
    assert run_check(few, fitted.calibration).coverage["decode_dense_inf2"].rows > 0.5
    lines = few.read_text().splitlines()
    column = lines[0].split(",").index("tpot_ms")
    rows = [next(csv.reader([line])) for line in lines]
    slow = few.with_name("slow.csv")
    with slow.open("w", newline="") as out:
        csv.writer(out).writerows(
            [*row[:column], f"{float(row[column]) * 10}" if n and row[column] else row[column], *row[column + 1 :]]
            for n, row in enumerate(rows)
        )
    found = run_check(slow, fitted.calibration)
    assert found.coverage["decode_dense_inf2"].rows == 0
    assert found.coverage["decode_dense_inf2"].series == 0
    assert "0% / 0% / 0%" in text_of(found)


def test_the_calibration_names_its_data_and_date(fitted: CalibrationReport) -> None:
    assert fitted.calibration.version.startswith("4-2026-01-02-")
    assert fitted.calibration.num_rows == len({row.row_id for row in fitted.rows})


def test_the_tables_show_groups_rows_and_coefficients(fitted: CalibrationReport, few: Path) -> None:
    fit_text, check_text = text_of(fitted), text_of(run_check(few))
    for name in TERMS:
        assert name in fit_text
    assert "not needed" in fit_text
    assert "unseen source" in fit_text
    assert "six coefficients" in fit_text
    assert "not needed" not in check_text
    assert "unseen source" not in check_text
    for text in (fit_text, check_text):
        assert "decode_dense_inf2" in text
        assert f"{len(fitted.rows)} times and {len(fitted.serving)} figures of load tests" in text


def test_one_source_alone_has_nothing_left_out(tmp_path: Path) -> None:
    alone = of_sample(tmp_path, ["74", "79"])
    report = run_calibrate(alone)
    assert all(set(group.left_out.values()) == {None} for group in report.groups.values())
    assert report.calibration.evidence.samples == ()
    assert "nan" not in text_of(report)
    assert json.loads(json.dumps(report.as_json()))["groups"]


def test_a_file_with_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    useless = of_sample(tmp_path, ["36"])
    for run in (run_calibrate, run_check):
        with pytest.raises(
            SettingsError, match=r"none of the 1 rows of .*is usable; the first: decode: use_decode_fit"
        ):
            run(useless)
