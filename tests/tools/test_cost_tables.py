"""docs/cost-model.md says what the shipped calibration has, and has a formula for each term."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from server.cost.calibration import ErrorStats, shipped_calibration
from server.cost.terms import TERMS
from tools.cost_tables import BLOCKS, PAGE, write


def test_the_tables_are_those_of_the_shipped_calibration() -> None:
    page = PAGE.read_text()
    assert write(page, shipped_calibration()) == page, "run python -m tools.cost_tables"


def test_every_block_is_on_the_page_once_and_no_other() -> None:
    page = PAGE.read_text()
    assert sorted(re.findall(r"<!-- (\w+): begin -->", page)) == sorted(BLOCKS)
    assert sorted(re.findall(r"<!-- (\w+): end -->", page)) == sorted(BLOCKS)
    with pytest.raises(KeyError):
        write("<!-- weather: begin -->\n<!-- weather: end -->", shipped_calibration())


def test_each_term_has_its_formula_and_its_coefficient() -> None:
    section = PAGE.read_text().partition("## Formulas")[2].partition("## Stacks")[0]
    formulas, _, coefficients = section.partition("### Coefficients")
    assert re.findall(r"^\| `(\w+)` \|", formulas, re.MULTILINE) == list(TERMS)
    assert re.findall(r"^\| `(\w+)` \|", coefficients, re.MULTILINE) == list(TERMS)


def test_another_calibration_makes_other_tables() -> None:
    """What a new fit changes is in the tables: coefficients, errors, plain models beside, the fit's name."""
    shipped, page = shipped_calibration(), PAGE.read_text()
    other = replace(
        shipped,
        date="2031-05-06",
        coefficients={"weights": 1.2345},
        baselines={"roofline": {name: ErrorStats(0.612, 0.5, 0.9, -0.4) for name in shipped.errors}},
    )
    written = write(page, other)
    assert "| version | 3-2031-05-06-" in written
    assert "| `weights` | 1.234 |" in written or "| `weights` | 1.235 |" in written
    assert "| `kv` | not kept |" in written
    assert "61.2% / 50.0% / 90.0%, -40.0%" in written
    assert write(written, shipped) == page
