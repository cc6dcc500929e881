"""Load tests of a table: how they are read, simulated, fitted and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from server.cost.calibration import ServingCoefficients, default_calibration
from server.planner.calibrate.contradictions import contradictions
from server.planner.calibrate.load_generators import LoadTest, OutputLengths, stop_rate
from server.planner.calibrate.pattern_search import fit_serving
from server.planner.calibrate.published import PublishedRow, read_rows
from server.planner.calibrate.report import run_calibrate, run_check
from server.planner.calibrate.serving import QUANTITIES, ServingRow, serving_rows

SAMPLE = Path(__file__).parent / "serving_sample.csv"


@pytest.fixture(scope="module")
def rows() -> dict[str, PublishedRow]:
    return {row.row_id: row for row in read_rows(SAMPLE)}


@pytest.fixture(scope="module")
def served(rows: dict[str, PublishedRow]) -> dict[str, ServingRow]:
    return {row.row.row_id: row for row in serving_rows(list(rows.values()), default_calibration())[0]}


def test_the_shipped_coefficients_hold_on_a_sample_of_what_they_were_fitted_to() -> None:
    groups = run_check(SAMPLE).groups
    assert groups["serving_inf2"].all.mean <= 0.15
    assert groups["serving_ttft_inf2"].all.median <= 0.25
    assert groups["serving_itl_inf2"].all.median <= 0.25
    assert groups["serving_inf2"].n == 17


def test_what_load_is_told_by_the_row(rows: dict[str, PublishedRow]) -> None:
    assert LoadTest.of(rows["692"]) == LoadTest(users=128, is_waves=True)
    assert LoadTest.of(rows["824"]) == LoadTest(users=1)
    assert LoadTest.of(rows["836"]) == LoadTest(users=128)
    assert LoadTest.of(rows["827"]) == LoadTest(rate=1.54, is_poisson=True)
    assert LoadTest.of(rows["840"]) == LoadTest(rate=1.93)
    assert LoadTest.of(rows["359"]) is None


def test_every_load_test_is_compared_or_skipped_with_a_reason(rows: dict[str, PublishedRow]) -> None:
    report = run_check(SAMPLE)
    skipped = dict(entry for entry in report.skipped if entry[1].startswith("serving"))
    assert skipped == {"843": "serving: quality is X", "952": "serving: quality is C"}
    assert {error.row_id for error in report.serving} | set(skipped) == set(rows) - {"359"}
    assert {error.unit for error in report.serving if error.group == "serving_inf2"} == {"tokens/s"}


def test_a_row_that_the_table_itself_contradicts_is_a_group_of_its_own(rows: dict[str, PublishedRow]) -> None:
    found = contradictions(list(rows.values()))
    assert set(found) == {"707", "712"}
    assert "a step of this graph is published with" in found["707"]
    assert "full static batches of this graph" in found["712"]
    assert run_check(SAMPLE).groups["serving_contradicted_inf2"].n == 2
    assert contradictions([row for row in rows.values() if row.row_id != "359"]) == {}


def test_more_users_get_more_tokens_and_wait_longer(served: dict[str, ServingRow]) -> None:
    coefficients = default_calibration().serving
    few, many = (served[row_id].predict(coefficients) for row_id in ("685", "692"))
    assert many[0] > 10 * few[0]
    assert many[1] > 3 * few[1]


def test_a_prediction_repeats_itself(served: dict[str, ServingRow]) -> None:
    coefficients = ServingCoefficients()
    assert served["830"].predict(coefficients) == served["830"].predict(coefficients)


def test_a_row_feels_its_own_coefficients_only(served: dict[str, ServingRow]) -> None:
    base = ServingCoefficients()
    slower = replace(base, sampling_logit_s=1e-6, client_spacing_s=3.0, stop_rate=0.01)
    assert served["846"].predict(base) == served["846"].predict(slower)  # SDK 2.22 samples on the device; guidellm
    assert served["846"].used_coefficients(base) == served["846"].used_coefficients(slower)
    assert served["830"].predict(base)[0] > served["830"].predict(slower)[0]
    assert served["692"].predict(base)[0] > served["692"].predict(slower)[0]


def test_a_fit_finds_what_made_the_figures(served: dict[str, ServingRow]) -> None:
    truth = ServingCoefficients(0.08, 3e-3, 5e-8, 0.15, 6e-4)
    made = [
        replace(row, measured=dict(zip(QUANTITIES, row.predict(truth, 2), strict=True)))
        for row in served.values()
        if row.row.row_id in ("685", "692", "824", "830", "846")
    ]
    fitted = fit_serving(made)
    for row in made:
        assert row.predict(fitted, 2)[0] == pytest.approx(row.measured["throughput"], rel=0.06)


def test_a_fit_without_rows_is_the_start() -> None:
    assert fit_serving([]) == ServingCoefficients()


def test_calibrate_fits_the_load_tests_of_a_table_too(rows: dict[str, PublishedRow], tmp_path: Path) -> None:
    lines = SAMPLE.read_text().splitlines(keepends=True)
    some = tmp_path / "some.csv"
    some.write_text(lines[0] + "".join(line for line in lines if line.split(",")[0] in ("685", "689", "824", "830")))
    report = run_calibrate(some)
    held = report.groups["serving_inf2"].left_out
    assert report.groups["serving_inf2"].n == 4
    assert held is not None
    assert report.calibration.serving != ServingCoefficients()
    assert report.as_json()["serving"][0].keys() >= {"row_id", "group", "unit", "measured", "predicted", "error"}


def test_early_stops_give_the_mean_length() -> None:
    rate = stop_rate(250, 175)
    drawn = OutputLengths(10, 250, rate).draw(np.random.default_rng(0), 20_000)
    assert OutputLengths(10, 250, rate).mean == pytest.approx(175)
    assert drawn.mean() == pytest.approx(175, rel=0.03)
    assert stop_rate(250, 250) == 0.0
    assert OutputLengths(10, 250, 0.0).mean == 250


def test_a_table_of_load_tests_alone_can_be_checked(tmp_path: Path) -> None:
    lines = SAMPLE.read_text().splitlines(keepends=True)
    alone = tmp_path / "alone.csv"
    alone.write_text(lines[0] + "".join(line for line in lines if line.split(",")[0] in ("692", "830")))
    assert {name: group.n for name, group in run_check(alone).groups.items() if group.n} == {
        "serving_inf2": 2,
        "serving_itl_inf2": 2,
        "serving_ttft_inf2": 2,
    }
