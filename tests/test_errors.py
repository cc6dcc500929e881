"""The tree that server/errors.py draws, beside the classes themselves."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronserve.server import errors
from neuronserve.server.errors import NeuronserveError, RequestError

ROOT = Path(__file__).parent.parent
PACKAGES = ("server", "planner", "console", "testkit", "workload", "neuronserve/cli", "neuronserve/settings")
TEXT = inspect.getdoc(errors) or ""
CLASSES = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
LINE = re.compile(r"^(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+)(?P<text>.*)$")
STEP = 4  # columns of one level


def drawn() -> list[tuple[str, str | None, str]]:
    """Name, parent and text of each line of the tree."""
    lines, path = list[tuple[str, str | None, str]](), list[str]()
    for line in TEXT.split("\n\n")[1].splitlines():
        found = LINE.match(line)
        assert found is not None, line
        depth = len(found["indent"]) // STEP
        path[depth:] = [found["name"]]
        lines.append((found["name"], path[depth - 1] if depth else None, found["text"]))
    return lines


def test_the_tree_has_every_class_of_the_page_once_below_its_base() -> None:
    parents = {name: parent for name, parent, _ in drawn()}
    assert len(parents) == len(drawn())
    bases = {name: each.mro()[1].__name__ for name, each in CLASSES.items() if each is not NeuronserveError}
    assert parents == {"NeuronserveError": None, **bases}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, _, text in drawn()])
def test_a_refused_request_is_drawn_with_its_status(name: str, text: str) -> None:
    kind = CLASSES[name]
    status = re.search(r"\d{3}", text)
    if issubclass(kind, RequestError) and kind is not RequestError:
        assert status is not None
        assert int(status[0]) == kind.status
    else:
        assert status is None


def other_errors() -> Iterator[str]:
    """Public errors with a base of the page that are defined in other files."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            if file == ROOT / "server/errors.py":
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef) and node.name[0] != "_" and _bases(node) & CLASSES.keys():
                    yield node.name


def _bases(node: ast.ClassDef) -> set[str]:
    return {base.id for base in node.bases if isinstance(base, ast.Name)}


def test_errors_that_are_defined_elsewhere_are_named_beside_the_tree() -> None:
    beside = re.findall(r"`(\w+)`", TEXT.split("\n\n")[2])
    assert sorted(beside) == sorted(other_errors())
