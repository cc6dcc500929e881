"""The table of families in the docs is the one that the code gives."""

from __future__ import annotations

from server.models.families import GENERATORS
from server.text.parsers.formats import CALLS
from tools.family_table import BEGIN, END, PAGE, REAL, SHAPE_OF, TOOLS, table


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip() == table().strip(), (
        "python -m tools.family_table"
    )


def test_every_family_is_tried_and_every_parser_exists() -> None:
    assert SHAPE_OF.keys() == GENERATORS.keys()
    assert TOOLS.keys() <= GENERATORS.keys()
    assert {parser for parsers in TOOLS.values() for parser in parsers} <= CALLS.keys()
    assert all(REAL.values())
