"""docs/internals/cost-model.md has a formula for each term."""

from __future__ import annotations

import re

from neuronserve.server.cost.terms import TERMS
from tools.doc_tables import DOCS


def test_each_term_has_its_formula_and_its_coefficient() -> None:
    section = (DOCS / "internals" / "cost-model.md").read_text().partition("## Formulas")[2].partition("## Stacks")[0]
    formulas, _, coefficients = section.partition("### Coefficients")
    cells = re.findall(r"^\| (`.*?) \|", formulas, re.MULTILINE)  # a row may be of several terms
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(TERMS)
    assert re.findall(r"^\| `(\w+)` \|", coefficients, re.MULTILINE) == list(TERMS)
