"""A refusal names the key, its value and what it must be; nothing that is no JSON of the form gets through."""

from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Meta, Struct

from server.typed_json import JsonError, convert, decode


class Leaf(Struct):
    size: Annotated[int, Meta(ge=1, le=8)]


class Tree(Struct):
    leaves: list[Leaf] = []
    named: dict[str, Leaf] = {}
    share: Annotated[float, Meta(gt=0)] | None = None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"leaves": [{"size": 1}, {"size": 9}]}', "leaves[1].size is 9: expected `int` <= 8"),
        ('{"leaves": [{"size": true}]}', "leaves[0].size is True: expected `int`, got `bool`"),
        ('{"leaves": [{"size": 2.0}]}', "leaves[0].size is 2.0: expected `int`, got `float`"),
        ('{"leaves": [{}]}', "leaves[0]: object missing required field `size`"),
        ('{"leaves": {"size": 1}}', "leaves: expected `array`, got `object`"),
        ('{"named": {"a.b": {"size": 0}}}', "named[...].size: expected `int` >= 1"),
        ('{"share": "' + "x" * 200 + '"}', "share is '" + "x" * 79 + "...: expected `float | null`, got `str`"),
        ('{"share": 1e999}', "share: number out of range"),
        ('{"share": 0, "leaves"', "share: expected `float` > 0.0"),  # what comes after it is no JSON
        ("[]", "expected `object`, got `array`"),
    ],
)
def test_what_is_not_of_the_form_is_named(text: str, complaint: str) -> None:
    with pytest.raises(JsonError) as caught:
        decode(text, Tree)
    assert str(caught.value) == complaint


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', '{"a": Infinity}', b"\xff", '{"a":' + "[" * 100_000, "\ud800"])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(JsonError, match=r"^is not JSON: "):
        decode(text, Tree)


def test_unknown_keys_are_passed_over_and_missing_ones_default() -> None:
    assert decode('{"share": 1, "more": [1, {"x": null}]}', Tree) == Tree(share=1.0)


def test_a_part_is_converted_as_if_it_had_been_read() -> None:
    assert convert({"size": 3}, Leaf) == Leaf(3)
    with pytest.raises(JsonError, match=r"^size is 0: expected `int` >= 1$"):
        convert({"size": 0}, Leaf)
