"""Grammars: what is refused and with which words, and the process that checks them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuronserve.server.errors import QueueFull
from neuronserve.server.settings.model import DEFAULT_MODEL as MODEL
from neuronserve.server.text.grammar import MAX_GRAMMAR_CHARS, GrammarError, Kind, load_grammar_tokenizer
from neuronserve.server.text.grammar_process import MAX_WAITING, GrammarProcess


@pytest.fixture(scope="module")
def process() -> Iterator[GrammarProcess]:
    made = GrammarProcess(MODEL, MODEL)
    yield made
    made.close()


REFUSALS: list[tuple[Kind, Any, str]] = [
    ("json", {"type": "strin"}, "Invalid type: strin"),
    ("json", {"not": {"type": "string"}}, 'Unimplemented keys: ["not"]'),
    ("json", {"$ref": "#/nowhere"}, "Pointer '/nowhere' does not exist"),
    ("json", {"$ref": "https://example.com/schema"}, "not present"),
    ("json", {"type": "integer", "minimum": 5, "maximum": 3}, "minimum (5) is greater than maximum (3)"),
    ("json", {"type": "string", "pattern": "("}, "unclosed group"),
    ("json", {"enum": [10**400]}, "out of range"),
    ("json", {"$ref": "#"}, "no text at all"),
    ("json", [], "an object, not list"),
    ("json", None, "an object, not null"),
    ("json", '{"type":', "not JSON"),
    ("regex", "(a", "unclosed group"),
    ("regex", "(?=a)b", "look-ahead"),
    ("regex", "(" * 50_000 + ")" * 50_000, "nest"),
    ("grammar", 'start: "a" | b', 'unknown name: "b"'),
    ("grammar", "start: " + "(" * 40_000 + '"a"' + ")" * 40_000, "too deeply nested"),
    ("json", "[" * 100_000, "not JSON"),
    ("lark", "start: start", "no text at all"),
    ("regex", "x" * (MAX_GRAMMAR_CHARS + 1), f"more than the limit of {MAX_GRAMMAR_CHARS}"),
    ("choice", ["x" * 1000] * 200, f"more than the limit of {MAX_GRAMMAR_CHARS}"),
]


@pytest.mark.parametrize(("kind", "spec", "words"), REFUSALS, ids=lambda value: str(value)[:40])
def test_what_cannot_be_followed_is_refused_in_one_line(
    process: GrammarProcess, kind: Kind, spec: Any, words: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        process.submit(kind, spec).result()
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_bomb_is_stopped_and_the_next_grammar_is_not(process: GrammarProcess) -> None:
    """The library expands multipleOf into states, which for a large prime takes it minutes."""
    hurried = GrammarProcess(MODEL, MODEL, timeout_s=1.0)
    try:
        with pytest.raises(GrammarError, match=r"took more than 1 s"):
            hurried.submit("json", {"type": "integer", "multipleOf": 1_000_003}).result()
        assert "start" in hurried.submit("choice", ["yes", "no"]).result()
    finally:
        hurried.close()


def test_what_passed_is_known_and_what_failed_is_checked_again(process: GrammarProcess) -> None:
    first = process.submit("choice", ["a", "b"])
    assert "start" in first.result()
    assert process.submit("choice", ["a", "b"]) is first
    failed = process.submit("regex", "(")
    assert failed.exception() is not None
    assert process.submit("regex", "(") is not failed


def test_only_so_many_new_grammars_wait_and_known_ones_pass_them() -> None:
    one = GrammarProcess(MODEL, MODEL, timeout_s=1.0)
    try:
        known = one.submit("choice", ["a"])
        known.result()
        bombs = [one.submit("json", {"type": "integer", "multipleOf": 1_000_003 + i}) for i in range(MAX_WAITING)]
        with pytest.raises(QueueFull, match=f"{MAX_WAITING} new grammars wait"):
            one.submit("choice", ["b"])
        assert one.submit("choice", ["a"]) is known
        for bomb in bombs[1:]:  # their clients leave
            bomb.cancel()
        assert "start" in one.submit("choice", ["b"]).result()
    finally:
        one.close()


def test_a_tokenizer_without_an_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((MODEL / "tokenizer.json").read_bytes())
    with pytest.raises(GrammarError, match="no end token"):
        load_grammar_tokenizer(tmp_path, tmp_path)
