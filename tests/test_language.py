"""Language of docstrings, comments and messages: plain first words, no riddles, and paths that exist."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("server", "planner", "console", "testkit", "loadtests", "workload", "neuronserve", "benchmarks", "tools")
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
FILES = [name for name in TRACKED if name.endswith(".py") and name.split("/")[0] in PACKAGES and (ROOT / name).exists()]
PAGES = [name for name in TRACKED if name.endswith(".md") and name != "CHANGELOG.md" and (ROOT / name).exists()]

# Files of other projects that comments cite as sources.
FOREIGN = frozenset(
    {"models/llama/modeling_llama.py", "models/model_wrapper.py", "models/config.py", "PROVISIONING.md"}
    | {"models/model_base.py", "quantization/config.py", "Trinity/README.md", "token_benchmark_ray.py"}
)
# A docstring starts with an imperative verb, or with the noun that it names.
BANNED_STARTS = frozenset(
    {"Of", "As", "Where", "By", "Those", "What", "To", "For", "That", "Whose", "Who", "From", "With", "In", "On"}
    | {"Which", "Whatever", "Whoever", "At", "Whom"}
)
# Each stood in sentences that nobody understood at the first reading: (pattern, what to write).
BANNED_PHRASES = {
    r"\bwho(m)?ever\b": "name the caller, client or process",
    r"\b(is|are|was|were|be|been|being|has|have|gets?) told\b": "is notified of, receives, is passed",
    r"\bthe part('s)?\b(?! of)(?! that)(?! which)": "the accelerator, or its name",
    r"\bof each other's\b": "name the two things",
    r"\bwhose its\b": "its",
    r"\bnine times of ten\b": "the 90th percentile",
    r"\bthat nobody\b": "unused, unassigned",
}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield (node.body[0].lineno, text)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each other string that has a space: errors, log lines, help."""
    skipped = {id(node.body[0].value) for node in ast.walk(tree) if _has_docstring(node)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in skipped
            and " " in node.value
        ):
            yield node.lineno, node.value


def _has_docstring(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    return bool(
        isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    )


def riddles(text: str) -> Iterator[str]:
    """Phrases of a text that are refused, each with what to write instead."""
    for pattern, instead in BANNED_PHRASES.items():
        for found in re.finditer(pattern, text, re.IGNORECASE):
            yield f"{found[0]!r} (write: {instead})"


@pytest.mark.parametrize("name", FILES)
def test_docstrings_start_with_a_verb_or_a_noun(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text())
    bad = [
        f"{name}:{line} {text.splitlines()[0]}"
        for line, text in docstrings(tree)
        if re.split(r"[\s,.:;]", text)[0] in BANNED_STARTS
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("name", FILES)
def test_text_has_no_riddles(name: str) -> None:
    source = (ROOT / name).read_text()
    tree = ast.parse(source)
    bad = [
        f"{name}:{line} {riddle}"
        for line, text in (*docstrings(tree), *comments(source), *messages(tree))
        for riddle in riddles(text)
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_no_riddles(name: str) -> None:
    bad = [f"{name}: {riddle}" for riddle in riddles((ROOT / name).read_text())]
    assert not bad, "\n".join(bad)


@cache
def path_ends() -> frozenset[str]:
    """Every tracked file under each of the names that a reader may call it: `loop.py`, `engine/loop.py`, and so on."""
    return frozenset("/".join(parts[i:]) for parts in (Path(name).parts for name in TRACKED) for i in range(len(parts)))


@pytest.mark.parametrize("name", FILES)
def test_paths_in_comments_exist(name: str) -> None:
    """A comment or docstring that names a file of this project names one that is there."""
    source = (ROOT / name).read_text()
    texts = (*docstrings(ast.parse(source)), *comments(source))
    bad = [
        f"{name}:{line} {path}"
        for line, text in texts
        if "http" not in text
        for path in re.findall(r"(?<![\w/.*<>{}-])([\w-]+(?:/[\w-]+)*\.(?:py|md))\b", text)
        if path not in path_ends() | FOREIGN
    ]
    assert not bad, "\n".join(bad)
