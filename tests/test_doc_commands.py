"""Commands that README and docs show: they exist, their flags too, and what they import is there after `make serve`."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from neuronserve.cli import COMMANDS, main
from tests.test_architecture import ROOT, imports

PAGES = [ROOT / "README.md", ROOT / "PACKAGE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = {"server", "neuronserve", "loadtests", "benchmarks", "tools"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def ids(path: Path) -> str:
    return path.name


def commands(page: Path, program: str) -> Iterator[str]:
    """Return the commands of `program` in code blocks and spans."""
    text = page.read_text().replace("\\\n", " ")
    fence = "sh" if program == "make" else "(?:sh)?"  # which is a word of prose too, as in what a command prints
    blocks = re.findall(rf"^```{fence}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for each in (*lines, *spans):
        for found in re.finditer(rf"(?:^|[ ;/]){re.escape(program)} ([^;|#>]+)", each):
            yield found[1].strip()


@cache
def page_of(command: str) -> str:
    """Return the output of the command's --help, with the advanced settings."""
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help", "--help-all"])
    assert ended.value.code == 0
    return out.getvalue()


def packages(names: list[str]) -> set[str]:
    """Return the packages that these requirements install, and the extras that they name."""
    wanted = {"llvmlite", "starlette"}  # parts of Numba and of FastAPI
    for requirement in map(Requirement, names):
        wanted.add(plain(requirement.name))
        for each in map(Requirement, required_by(requirement.name)):
            if each.marker and any(each.marker.evaluate({"extra": extra}) for extra in requirement.extras):
                wanted.add(plain(each.name))
    # One that is not installed here is thought to have the name of its package.
    return {name for name, given in distributions().items() if given & wanted} | wanted


@cache
def distributions() -> dict[str, set[str]]:
    """Packages, and the distributions that have them."""
    return {name: set(map(plain, given)) for name, given in packages_distributions().items()}


def required_by(name: str) -> list[str]:
    with contextlib.suppress(PackageNotFoundError):  # such as a peer, which the project itself does not install
        return requires(name) or []
    return []


def plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def stated(page: Path) -> set[str]:
    """Packages that a reader of the page has: the server's, those of an extra it names, and those it has installed."""
    text, extras = page.read_text(), PROJECT["optional-dependencies"]
    named = [name for name in extras if f"extra `{name}`" in text]
    more = [each for name in named for each in extras[name] if not each.startswith("neuronserve[")]
    more += [word for line in re.findall(r"pip install ([\w -]+)", text) for word in line.split() if word[0] != "-"]
    return packages(PROJECT["dependencies"] + more)


@cache
def needed(module: str) -> set[str]:
    """Third-party packages that are imported when one of our modules is."""
    done: set[Path] = set()
    left, found = [module, f"{module}.__main__"], set()
    while left:
        name = left.pop()
        stem = ROOT.joinpath(*name.split("."))
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file() and path not in done:
                done.add(path)
                each = imports(path, is_start_only=True)
                left += [name for name in each if name.split(".")[0] in OURS]
                found |= {name.split(".")[0] for name in each} - OURS - sys.stdlib_module_names
    assert done, f"there is no module {module}"
    return found


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_shown_commands_and_their_flags_exist(page: Path) -> None:
    for words in commands(page, "neuronserve"):
        if not re.match(r"[a-z-]+(?: |$)", words):  # as of the package: `neuronserve 0.1.0`
            continue
        first, _, rest = words.partition(" ")
        second = f"{first} {rest.split(' ')[0]}"
        command = second if second in COMMANDS else first
        if command == "bench" or words.startswith("--"):
            continue
        assert command in COMMANDS, f"{page.name}: neuronserve {words}"
        for flag in re.findall(r"(?<=\s)(--[a-z][a-z-]*|-[a-z])\b", f" {rest}"):
            exists = re.search(rf"(?<![\w-]){flag}(?![\w-])", page_of(command))
            assert exists, f"{page.name}: neuronserve {words}: {flag}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_what_shown_programs_import_is_there(page: Path) -> None:
    for words in commands(page, "python -m"):
        module = words.split()[0]
        if module.split(".")[0] in OURS:
            lacking = needed(module) - stated(page)
            assert not lacking, f"python -m {module} needs {lacking}, which no extra that {page.name} names has"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_what_shown_code_imports_is_there(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                roots = {name.split(".")[0] for name in names} - sys.stdlib_module_names - OURS
                assert roots <= stated(page), f"{page.name}: {roots - stated(page)}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_shown_targets_exist(page: Path) -> None:
    for words in commands(page, "make"):
        for target in words.split():
            if re.fullmatch(r"[a-z][a-z-]*", target):
                assert target in TARGETS, f"{page.name}: make {words}"


def test_the_pages_show_something() -> None:
    assert sum(1 for page in PAGES for _ in commands(page, "neuronserve")) > 30
    assert sum(1 for page in PAGES for _ in commands(page, "python -m")) > 10
