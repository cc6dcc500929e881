"""`neuronserve validate`: its page, text and report of small tables, and what is kept of releases."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from neuronserve.cli import main
from neuronserve.planner.calibrate.comparison import Figure
from neuronserve.planner.calibrate.published import read_rows
from neuronserve.planner.validate.noise import MONTHS, RELEASES, SOURCES, scatters, spreads
from neuronserve.planner.validate.releases import releases
from neuronserve.planner.validate.report import Validation, validate
from neuronserve.server import __version__
from neuronserve.server.cost.calibration import shipped_calibration
from tools.record_release import record, text_of

SAMPLE, LOAD, ENCODERS = (Path(__file__).parent / f"{name}_sample.csv" for name in ("published", "serving", "encoders"))


@pytest.fixture(scope="module")
def found() -> Validation:
    return validate(SAMPLE, ENCODERS)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("validate")
    for name, table in TABLES.items():
        flags = [f"--{kind}={folder / name}.{ending}" for kind, ending in ENDINGS.items()]
        assert main(["validate", "--data", str(table), "--encoders", str(ENCODERS), *flags]) == 0
    return folder


TABLES = {"steps": SAMPLE, "load": LOAD}
ENDINGS = {"html": "html", "markdown": "md", "json": "json"}


def test_the_page_is_whole_loads_nothing_and_has_every_group_and_row(written: Path, found: Validation) -> None:
    text = (written / "steps.html").read_text()
    page = ElementTree.fromstring(text.removeprefix("<!doctype html>\n"))
    assert not [each.tag for each in page.iter() if each.tag in ("script", "link", "img", "iframe")]
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "prefers-color-scheme: dark" in text
    lines = [each.text or "" for each in page.iter("summary")]
    for group in {each.group for each in found.figures}:
        assert any(line.startswith(f"{group}: ") for line in lines), group
    for series in {each.series for each in found.figures}:
        assert any(line.startswith(f"{series} (") for line in lines), series
    rows = [cells for cells in ([cell.text for cell in row.iter("td")] for row in page.iter("tr")) if len(cells) == 7]
    for figure in found.figures:
        assert any(cells[0] == figure.row_id and cells[4] == f"{figure.error:+.1%}" for cells in rows), figure.row_id


def test_text_and_page_have_the_same_sections(written: Path) -> None:
    for name in TABLES:
        page = ElementTree.fromstring((written / f"{name}.html").read_text().removeprefix("<!doctype html>\n"))
        text = (written / f"{name}.md").read_text()
        headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
        assert headings == [each.text for each in page.iter("h2")]
        assert "What is not known" in headings
        assert "Not measured on Trainium3, formulas and the data sheet alone: decode steps, " in text
        assert "release 0.1.0 had 11% on series left out of its fit, decode steps, and 24% on 37 series" in text


def test_the_report_has_finite_numbers_and_the_accuracy_of_a_release(written: Path, found: Validation) -> None:
    for name in TABLES:
        report = json.loads((written / f"{name}.json").read_text(), parse_constant=pytest.fail)
        assert all(math.isfinite(each) for each in numbers(report))
        assert report["accuracy"]["name"] == __version__
        assert report["accuracy"].keys() == {each for each in json.loads(text_of([found.release()]))[0]}
        groups = report["accuracy"]["groups"]
        assert groups.keys() == {each["group"] for each in report["figures"]}
        for group, each in groups.items():
            rows = sum(part["rows"] for part in each.values() if part)
            assert rows == sum(figure["group"] == group for figure in report["figures"])


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield value


def test_rows_of_the_fit_are_seen_and_others_are_not(tmp_path: Path, found: Validation) -> None:
    own = [each for each in found.figures if each.group == "decode_dense_inf2"]
    assert own
    assert all(each.is_seen for each in own)
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(SAMPLE.read_text().replace("hf-optimum-static", "somebody-else"))
    release = validate(renamed).release()
    split = release.groups["decode_dense_inf2"]
    assert split.seen is not None
    assert split.unseen is not None
    ids = {row.row_id for row in read_rows(renamed) if row.texts["source_group"] == "somebody-else"}
    wanted = [each for each in validate(renamed).figures if each.row_id in ids and each.group == "decode_dense_inf2"]
    assert split.unseen.rows == len(wanted) > 5
    assert not any(each.is_seen for each in wanted)
    assert release.plain["roofline"]["decode_dense_inf2"].unseen is not None


def figure(series: str, measured: float, **given: Any) -> Figure:
    known: dict[str, Any] = {"row_id": "1", "group": "decode_dense_inf2", "setup": "one", "label": "", "unit": "ms"}
    known |= {"series": series, "source": series.split(maxsplit=1)[0], "month": "2024-04", "predicted": 20.0}
    return Figure(**known | given, measured=measured)


def test_scatter_between_months_and_between_sources_by_hand() -> None:
    later = figure("x 2.18 m", 22.0, month="2024-05")
    own = [figure("x 2.18 m", 10.0), figure("x 2.18 m", 12.0), later]
    own += [figure("x 2.19 m", 99.0, month="2024-05"), figure("y 2.18 m", 13.2), figure("z 2.18 o", 5.0, setup="other")]
    by_kind = {each.between: each for each in spreads(own)}
    assert by_kind[MONTHS].pairs == 1
    assert by_kind[RELEASES].pairs == 2, "of 99 ms to the two months of the other release"
    assert by_kind[RELEASES].largest == pytest.approx(99 / 11 - 1)
    assert by_kind[MONTHS].mean == pytest.approx(1.0), "22 and the median of 10 and 12"
    assert by_kind[SOURCES].pairs == 3
    assert by_kind[SOURCES].median == pytest.approx(22 / 13.2 - 1)
    assert len(by_kind) == 3
    assert by_kind[MONTHS].least_error == pytest.approx(2**0.5 - 1)


def test_a_constant_of_each_series_leaves_what_differs_within() -> None:
    same = [figure("x 2.18 m", 10.0, predicted=20.0), figure("x 2.18 m", 20.0, predicted=40.0)]
    (exact,) = scatters([*same, figure("y 2.18 m", 10.0)])
    assert (exact.series, exact.rows, exact.error) == (1, 2, pytest.approx(0.0))
    (left,) = scatters([*same, figure("x 2.18 m", 10.0, predicted=22.0)])
    assert left.error == pytest.approx(0.1 / 3)


def test_a_release_is_kept_with_its_coefficients_and_the_plain_fit() -> None:
    kept = record("a release", SAMPLE)
    assert kept.name == "a release"
    assert kept.coefficients == shipped_calibration().coefficients
    assert set(kept.plain) == {"six coefficients", "roofline"}
    assert len(kept.six) == 6
    names = [each.name for each in releases()]
    assert names[0] == "0.1.0"
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("flag", ["html", "markdown", "json"])
def test_a_file_that_cannot_be_written_is_named(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--data", str(SAMPLE), f"--{flag}", str(tmp_path / "none" / "x")]) == 2
    error = capsys.readouterr().err
    assert f"--{flag}: cannot write" in error
    assert error.count("\n") == 1


def test_a_table_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate"]) == 2
    assert capsys.readouterr().err == "neuronserve: error: --data: is needed\n"


def test_a_calibration_of_an_endpoint_keeps_no_plain_fit(tmp_path: Path) -> None:
    with SAMPLE.open(newline="") as lines:
        assert next(csv.reader(lines))
    own = tmp_path / "own.json"
    own.write_text(json.dumps(replace(shipped_calibration(), date="2031-01-01").as_dict()))
    out = tmp_path / "report.json"
    try:
        assert main(["validate", "--data", str(SAMPLE), "--calibration", str(own), "--json", str(out)]) == 0
    finally:
        from neuronserve.server.cost.calibration import use_calibration

        use_calibration(None)
    report = json.loads(out.read_text())
    assert report["accuracy"]["calibration"].split("-", 1)[1].startswith("2031-01-01")
    assert set(report["accuracy"]["plain"]) == {"roofline"}


def test_encoders_take_part(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    tables = "--data", str(SAMPLE), "--encoders", str(ENCODERS)
    assert main(["validate", *tables, "--json", str(report)]) == 0
    record = json.loads(report.read_text())
    passes = [each for each in record["figures"] if each["group"].startswith("encode_")]
    assert passes
    held = [each["band"]["p10"] <= each["measured"] / each["predicted"] <= each["band"]["p90"] for each in passes]
    assert 0.6 <= sum(held) / len(held) <= 1
    assert record["accuracy"]["totals"]["encode"]["seen"]["by_row"]["mean"] < 0.15
    assert set(record["accuracy"]["plain"]["roofline"]) >= {"encode_single_inf1", "decode_dense_inf2"}
    order = [each["group"].startswith("serving") for each in record["figures"]]
    assert order == sorted(order)
