"""The tables of the docs are those that the code gives."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from neuronserve.planner.validate.markdown import body
from neuronserve.planner.validate.page import at_fit
from neuronserve.planner.validate.releases import releases
from neuronserve.server.cost.calibration import VERSION, ErrorStats, shipped_calibration
from neuronserve.server.models.families import ARCHITECTURES, GENERATORS
from neuronserve.server.text.parsers.call_formats import CALLS
from tools.cost_tables import blocks
from tools.doc_tables import DOCS, PAGES, main, written
from tools.family_table import REAL, SHAPE_OF, TOOLS

SLOW = {"guides/load-tests.md"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] if name in SLOW else []) for name in PAGES]
)
def test_a_page_has_the_tables_of_the_code(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", name]) == 0, f"python -m tools.doc_tables {name}\n{capsys.readouterr().out}"


def test_every_table_is_on_its_page_once_and_no_other() -> None:
    for page in DOCS.rglob("*.md"):
        text, blocks_of_page = page.read_text(), sorted(PAGES.get(page.relative_to(DOCS).as_posix(), {}))
        assert sorted(re.findall(r"<!-- (\w+): begin -->", text)) == blocks_of_page
        assert sorted(re.findall(r"<!-- (\w+): end -->", text)) == blocks_of_page
    with pytest.raises(KeyError):
        written("<!-- weather: begin -->\n<!-- weather: end -->", {})


def test_a_stale_page_is_shown_and_an_unknown_one_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PAGES, "reference/metrics.md", {"families": lambda: "| nothing |"})
    assert main(["--check", "reference/metrics.md"]) == 1
    assert "+| nothing |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["weather.md"])


def test_another_calibration_makes_other_tables() -> None:
    """A new fit changes the tables: coefficients, the fit's name; errors and plain baselines on the page of errors."""
    shipped, page = shipped_calibration(), (DOCS / "internals" / "cost-model.md").read_text()
    other = replace(
        shipped,
        date="2031-05-06",
        coefficients={"weights": 1.2345},
        baselines={"roofline": {name: ErrorStats(0.612, 0.5, 0.9, -0.4) for name in shipped.errors}},
    )
    changed = written(page, blocks(other))
    assert f"| version | {VERSION}-2031-05-06-" in changed
    assert "| `weights` | 1.234 |" in changed or "| `weights` | 1.235 |" in changed
    assert "| `kv` | not kept |" in changed
    assert written(changed, blocks(shipped)) == page
    errors = body(at_fit(other))
    assert "| 50% / 90%, -40% |" in errors


def test_the_last_kept_release_is_of_the_shipped_calibration() -> None:
    assert releases()[-1].calibration == shipped_calibration().version, "python -m tools.record_release CSV"


def test_every_family_is_tried_and_every_parser_exists() -> None:
    assert SHAPE_OF.keys() <= GENERATORS.keys()
    live = "".join(
        path.read_text() for path in (Path(__file__).parents[1] / "parity").glob("*.py")
    )  # model_types of rows there
    others = {kind for kind, name in ARCHITECTURES.items() if name in GENERATORS.keys() - SHAPE_OF.keys()}
    assert not {kind for kind in others if f'"{kind}"' not in live}
    assert TOOLS.keys() <= GENERATORS.keys()
    assert {parser for parsers in TOOLS.values() for parser in parsers} <= CALLS.keys()
    assert all(REAL.values())
