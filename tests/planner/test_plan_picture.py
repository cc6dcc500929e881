"""Tables and pictures of a plan."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from neuronserve.planner.plan import pareto
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.pareto import PricedPoint, front, points, svg, write_picture
from neuronserve.planner.plan.report import PlanReport
from neuronserve.planner.plan.search import plan
from neuronserve.planner.plan.table import render
from neuronserve.server.errors import SettingsError

OPTIONS = PlanOptions("llama-8b", 1000, 201, 5.0, ttft_s=1.0, tpot_s=0.03)
SVG = "{http://www.w3.org/2000/svg}"
WITHIN = "Within the limits"


@pytest.fixture(scope="module")
def report() -> PlanReport:
    return plan(OPTIONS)


def text_of(report: PlanReport, num_rows: int = 20) -> str:
    out = StringIO()
    Console(file=out, width=1000).print(render(report, 1000, is_wide=True, num_rows=num_rows))
    return out.getvalue()


def rows_of(text: str, title: str) -> list[list[str]]:
    """Cells of the table under a title."""
    below = text.split(f"\n{title}")[1].splitlines()
    start = next(at for at, line in enumerate(below) if line.startswith("─"))
    end = next(at for at, line in enumerate(below) if at > start and line.startswith(("...", "by:")))
    return [line.split() for line in below[start + 1 : end]]


def at(report: PlanReport, *figures: tuple[float, float]) -> list[PricedPoint]:
    return [PricedPoint(tpot, usd, report.candidates[0]) for tpot, usd in figures]


def test_the_front_holds_what_nothing_beats(report: PlanReport) -> None:
    found = front(at(report, (1, 9), (2, 5), (2, 7), (3, 5), (4, 6), (5, 1)))
    assert [(p.tpot_ms, p.usd) for p in found] == [(1, 9), (2, 5), (5, 1)]


def test_no_configuration_within_the_limits_beats_the_front(report: PlanReport) -> None:
    line = front(points(report))
    assert len(line) > 3
    for point in points(report):
        if point.candidate.meets_slo:
            assert any(best.tpot_ms <= point.tpot_ms and best.usd <= point.usd for best in line)


def test_the_front_ends_with_the_cheapest(report: PlanReport) -> None:
    within = [point.usd for point in points(report) if point.candidate.meets_slo]
    assert front(points(report))[-1].usd == min(within)


def test_when_nothing_meets_the_limits_the_front_is_of_all() -> None:
    assert front(points(plan(replace(OPTIONS, tpot_s=1e-4))))


def test_the_svg_is_well_formed_with_a_dot_for_each_priced_configuration(report: PlanReport) -> None:
    tree = ElementTree.fromstring(svg(report))
    dots = tree.findall(f"{SVG}circle")
    assert len(dots) == len(points(report)) + len(front(points(report)))
    for dot in dots:
        assert 90 <= float(dot.attrib["cx"]) <= 930
        assert 20 <= float(dot.attrib["cy"]) <= 500
        assert "TPOT" in (dot.findtext(f"{SVG}title") or "")


def test_faster_is_further_left_and_cheaper_is_lower(report: PlanReport) -> None:
    line = ElementTree.fromstring(svg(report)).find(f"{SVG}polyline")
    assert line is not None
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert places == sorted(places)  # left to right, and downwards, where y grows


def test_the_page_is_whole_and_loads_nothing(report: PlanReport, tmp_path: Path) -> None:
    write_picture(report, tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    HTMLParser().feed(page)
    assert not re.search(r"<(script|link|img|iframe)|\ssrc=|href=|@import|url\(", page)
    assert page.count("<svg") == 1
    assert "no power figure is published" in page


def test_names_are_escaped_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "<b>&"
    path.write_text((Path(__file__).parents[2] / "server/default_model/config.json").read_text())
    page = pareto.html(plan(PlanOptions(str(path), 100, 20, devices=("inf2.xlarge",))))
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page


def test_a_picture_needs_prices(tmp_path: Path) -> None:
    unpriced = plan(replace(OPTIONS, devices=("trn2.48xlarge",)))
    with pytest.raises(SettingsError, match=r"nothing to draw: no configuration has both a price \(on_demand\)"):
        write_picture(unpriced, tmp_path / "plan.html")


def test_another_ending_is_refused(report: PlanReport, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"the name must end in \.png or \.html"):
        write_picture(report, tmp_path / "plan.pdf")


def test_a_path_that_cannot_be_written_is_named(report: PlanReport, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot write .*/no/plan\.html: No such file"):
        write_picture(report, tmp_path / "no" / "plan.html")


def test_png_without_matplotlib_says_what_to_install(
    report: PlanReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SettingsError, match="PNG needs matplotlib, which is not installed"):
        write_picture(report, tmp_path / "plan.png")
    assert not (tmp_path / "plan.png").exists()


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is an extra")
def test_png_is_a_png(report: PlanReport, tmp_path: Path) -> None:
    write_picture(report, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_the_table_leads_with_the_cheapest_and_tells_of_the_rest(report: PlanReport) -> None:
    text = text_of(report)
    best = report.best
    assert best is not None
    assert rows_of(text, WITHIN)[0][:5] == [best.device, str(best.tp), str(best.dp), "bf16", str(best.batch)]
    for title in (WITHIN, "Fits, but misses the limits", "Excluded"):
        assert title in text
    assert "TTFT at most 1000 ms, TPOT at most 30 ms" in text
    assert "no power figure is published" in text


def test_the_table_says_what_is_a_formula_and_which_prices_are_unknown() -> None:
    text = text_of(plan(replace(OPTIONS, devices=("trn3-gen1",))))
    assert {row[-1] for row in rows_of(text, WITHIN)} == {"formula"}
    assert "- formula only, no decode of an LLM on Trainium3 is among the measurements (trn3-gen1 TP" in text
    assert "unknown" in text
    assert "$" in text


def test_long_tables_are_cut_and_say_so(report: PlanReport) -> None:
    assert re.search(r"\.\.\. and \d+ more", text_of(report, 3))
    assert "... and" not in text_of(report, 10_000)


def test_each_group_is_shown_once_with_its_best_batch(report: PlanReport) -> None:
    text = text_of(report, 10_000)
    within = {(c.device, c.tp, c.dtype) for c in report.candidates if c.meets_slo}
    assert len(rows_of(text, WITHIN)) == len(within) == len({tuple(row[:4]) for row in rows_of(text, WITHIN)})
