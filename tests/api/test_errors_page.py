"""docs/reference/errors.md has every code that an error of the API can have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.test_architecture import ROOT
from tools import errors_table
from tools.doc_tables import DOCS


def given_codes(tree: ast.Module, kinds: set[str]) -> Iterator[str]:
    """Codes that calls of error classes pass, by name or as their third or fourth argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
            given = [each.value for each in node.keywords if each.arg == "code"] + node.args[2:4]
            yield from (each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str))


def test_every_error_of_a_request_is_in_a_module_of_the_table() -> None:
    kinds = {"RequestError"} | {kind.__name__ for kind in errors_table.error_classes()}
    found = set()
    for path in sorted((ROOT / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and kinds & {
                base.id for base in node.bases if isinstance(base, ast.Name)
            }:
                found.add("neuronserve." + ".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert found == set(errors_table.MODULES)


def test_every_code_is_on_the_page() -> None:
    classes = errors_table.error_classes()
    kinds = {kind.__name__ for kind in classes}
    codes = {kind.code for kind in classes if kind.code}
    for path in sorted((ROOT / "server").rglob("*.py")):
        codes |= set(given_codes(ast.parse(path.read_text()), kinds))
    page = (DOCS / "reference" / "errors.md").read_text()
    assert len(codes) > 25
    assert sorted(code for code in codes if f"`{code}`" not in page) == []
