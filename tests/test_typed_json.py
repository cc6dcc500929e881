"""A refusal names the key, its value and what it must be; nothing that is no JSON of the form gets through."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct

from neuronserve.server.typed_json import JsonError, convert, decode, read


class Leaf(Struct):
    size: Annotated[int, Meta(ge=1, le=8)]


class Tree(Struct):
    leaves: list[Leaf] = []
    kind: Literal["fir", "yew"] | None = None
    named: dict[str, Leaf] = {}
    share: Annotated[float, Meta(gt=0)] | None = None
    pair: tuple[str, Leaf] | None = None
    colours: set[str] = set()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"leaves": [{"size": 1}, {"size": 9}]}', "leaves[1].size is 9: expected `int` <= 8"),
        ('{"leaves": [{"size": true}]}', "leaves[0].size is True: expected `int`, got `bool`"),
        ('{"leaves": [{"size": 2.0}]}', "leaves[0].size is 2.0: expected `int`, got `float`"),
        ('{"leaves": [{}]}', "leaves[0].size is missing"),
        ('{"leaves": {"size": 1}}', "leaves is {'size': 1}: expected `array`, got `object`"),
        ('{"named": {"a.b": {"size": 0}}}', "named.a.b.size is 0: expected `int` >= 1"),
        ('{"share": "' + "x" * 200 + '"}', "share is '" + "x" * 79 + "...: expected `float | null`, got `str`"),
        ('{"share": 1' + "0" * 400 + "}", "share is an integer of over 77 digits: number out of range"),
        ('{"named": {"x": {"size": 1}, "\\u001b": {"size": 0}}}', "named.'\\x1b'.size is 0: expected `int` >= 1"),
        ('{"pair": ["x", {"size": 9}]}', "pair[1].size is 9: expected `int` <= 8"),
        ('{"pair": ["x"]}', "pair is ['x']: expected `array` of length 2, got 1"),
        ('{"colours": ["red", 3]}', "colours[1] is 3: expected `str`, got `int`"),
        ('{"named": {"": {"size": 0}}}', "named is {'': {'size': 0}}: expected `int` >= 1"),
        ('{"kind": "oak"}', "kind is 'oak': expected 'fir' or 'yew'"),
        ("[]", "expected `object`, got `array`"),
    ],
)
def test_what_is_not_of_the_form_is_named(text: str, complaint: str) -> None:
    with pytest.raises(JsonError) as caught:
        decode(text, Tree)
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ('{"share": 0, "leaves"', "Expecting ':'"),
        ('{"a": NaN}', "NaN"),
        ('{"a": [-Infinity]}', "-Infinity"),
        ('{"a": 1e999}', "'1e999' is beyond the largest float"),
        ('{"a": ' + "9" * 5000 + "}", "Exceeds the limit"),
        (b"\xff", "'utf-8' codec can't decode"),
        (b'"\xed\xa0\x80"', "'utf-8' codec can't decode"),
        ('{"a":' + "[" * 100_000, "nested too deep"),
        ("\ud800", "Expecting value"),
        ('"\\ud800"', "'utf-8' codec can't encode"),
    ],
)
def test_what_is_no_json_is_refused(text: str | bytes, reason: str) -> None:
    for record in (Tree, Any):
        with pytest.raises(JsonError, match=f"^is not JSON: {reason}"):
            decode(text, record)


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert decode('"\\ud83d\\ude00"', str) == "\U0001f600"


def test_a_key_that_appears_twice_is_refused_wherever_it_is() -> None:
    with pytest.raises(JsonError, match=r"^key 'x' appears twice$"):
        decode('{"more": [{"x": 1, "y": 2, "x": 1}]}', Tree)


def test_a_file_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for make, complaint in (
        (lambda: None, "no such file"),
        (lambda: path.write_text('{"size": 12}'), "cannot be read: it is larger than the 11 bytes allowed"),
        (lambda: path.write_text('{"size": 2} '), "cannot be read: it is larger than the 11 bytes allowed"),
        (lambda: (path.unlink(), path.mkdir()), "cannot be read: Is a directory"),
    ):
        make()
        with pytest.raises(JsonError, match=f"^{complaint}$"):
            read(path, 11, Leaf)
    path.rmdir()
    path.write_text('{"size": 2}')
    assert read(path, 11, Leaf) == Leaf(2)


def test_unknown_keys_are_passed_over_and_missing_ones_default() -> None:
    assert decode('{"share": 1, "more": [1, {"x": null}]}', Tree) == Tree(share=1.0)


def test_a_part_is_converted_as_if_it_had_been_read() -> None:
    assert convert({"size": 3}, Leaf) == Leaf(3)
    with pytest.raises(JsonError, match=r"^size is 0: expected `int` >= 1$"):
        convert({"size": 0}, Leaf)
    with pytest.raises(JsonError, match=r"^tree.leaves\[0\].size is 0: expected `int` >= 1$"):
        convert({"leaves": [{"size": 0}]}, Tree, "tree.")
    with pytest.raises(JsonError, match=r"^tree.leaves\[0\].size is missing$"):
        convert({"leaves": [{}]}, Tree, "tree.")
    with pytest.raises(JsonError, match=r"^leaf.size is missing$"):
        convert({}, Leaf, "leaf.")
