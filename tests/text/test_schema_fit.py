"""Schemas for grammars: what is rewritten means the same, what is left out is checked, what is no schema is named."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL as MODEL
from neuronserve.server.text.grammar import GrammarError
from neuronserve.server.text.grammar_process import GrammarProcess
from neuronserve.server.text.schema_check import UNCHECKED, SchemaChecks
from neuronserve.server.text.schema_fit import Fit

KEYS: Any = {"type": "object", "additionalProperties": {"type": "integer"}}
PART: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
# Rewritten without a loss.
SAME: dict[str, Any] = {
    "names of any form": {**KEYS, "propertyNames": {"type": "string"}},
    "names of a list": {**KEYS, "propertyNames": {"enum": ["a", "b"]}},
    "one name": {**KEYS, "propertyNames": {"const": "a"}},
    "names by a reference": {
        **KEYS,
        "propertyNames": {"$ref": "#/$defs/x~1y"},
        "$defs": {"x/y": {"$ref": "#/$defs/z"}, "z": {"enum": ["a", "b"]}},
    },
    "names of a list beside properties": {
        "properties": {"a": {"type": "boolean"}, "c": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
        "propertyNames": {"enum": ["a", "b"]},
    },
    "names of a list and no others": {**PART, "additionalProperties": False, "propertyNames": {"enum": ["a", "b"]}},
    "names of a pattern": {**KEYS, "propertyNames": {"pattern": "^[ab]$"}},
    "no names": {**KEYS, "propertyNames": {"enum": []}},
    "items that may be equal": {"type": "array", "items": {"type": "integer"}, "uniqueItems": False},
    "nothing has to be contained": {"type": "array", "contains": {"type": "integer"}, "minContains": 0},
    "own properties alone": {**PART, "unevaluatedProperties": False},
    "properties of all parts": {
        "allOf": [{"$ref": "#/$defs/p"}, {"properties": {"b": {"type": "integer"}}}],
        "unevaluatedProperties": False,
        "$defs": {"p": PART},
    },
    "a form of no standard": {"type": "string", "format": "phone"},
    "a count that is a float": {"type": "array", "maxItems": 1.0},
    "keywords as names": {"properties": {"format": {"format": "phone"}, "items": {"type": "integer"}}},
}
LEFT_OUT: dict[str, Any] = {
    "unique items": {"type": "array", "uniqueItems": True},
    "a negation": {"not": {"type": "string"}},
    "a condition": {"if": {"type": "string"}, "then": {"maxLength": 3}},
    "look-ahead": {"type": "string", "pattern": "^(?=a)"},
    "names by look-ahead": {**KEYS, "propertyNames": {"pattern": "^(?=a)"}},
    "properties by look-ahead": {"patternProperties": {"^(?=a)": {"type": "integer"}}, "additionalProperties": False},
    "a factor of many digits": {"type": "number", "multipleOf": 0.3333},
    "a choice of one": {"oneOf": [{"minimum": 1}, {"maximum": 1}]},
    "parts that are not plain": {"anyOf": [PART, {"properties": {"b": {}}}], "unevaluatedProperties": False},
    "names of a pattern beside properties": {**PART, "propertyNames": {"pattern": "^a"}},
    "numbers that no float holds": {"enum": [10**400, 1]},
}
LEAVES = [None, True, 0, 1, 2.5, "", "a", "x" * 9, 0.3333]
VALUES: list[Any] = [
    *LEAVES,
    *([each] for each in LEAVES),
    *([one, other] for one, other in itertools.product(LEAVES, repeat=2)),
    *({key: each} for key in ("a", "b", "c", "format", "items") for each in LEAVES),
    *({"a": one, key: other} for key in "bc" for one, other in itertools.product(LEAVES, repeat=2)),
    {},
]


@pytest.fixture(scope="module")
def process() -> Iterator[GrammarProcess]:
    made = GrammarProcess(MODEL, MODEL)
    yield made
    made.close()


@pytest.fixture(scope="module")
def checks() -> Iterator[SchemaChecks]:
    made = SchemaChecks()
    yield made
    made.close()


@pytest.mark.parametrize("name", SAME)
def test_what_is_rewritten_without_a_loss_means_the_same(process: GrammarProcess, name: str) -> None:
    fit = Fit.decode(process.fit(SAME[name]).result())
    assert not fit.checked
    theirs, ours = (jsonschema.Draft202012Validator(schema) for schema in (SAME[name], fit.schema))
    assert [value for value in VALUES if theirs.is_valid(value) != ours.is_valid(value)] == []
    assert {theirs.is_valid(value) for value in VALUES} == {True, False}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_is_checked(process: GrammarProcess, checks: SchemaChecks, name: str) -> None:
    fit = Fit.decode(process.fit(LEFT_OUT[name]).result())
    assert fit.checked
    assert fit.why
    oracle = jsonschema.Draft202012Validator(LEFT_OUT[name])
    faults = [checks.submit(fit.checked, json.dumps(value)).result() for value in VALUES]
    assert [value for value, fault in zip(VALUES, faults, strict=True) if oracle.is_valid(value) == bool(fault)] == []
    assert any(faults)
    assert not all(faults)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": {"items": {"type": "objekt"}}}}, "$.properties.a.items.type"),
        ({"type": "array", "items": {"minItems": 1.5}}, "$.items.minItems (type)"),
        ({"uniqueItems": "yes"}, "$.uniqueItems (type): 'yes'"),
        ({"$ref": "#/$defs/a", "$defs": {"b": {}}}, "'/$defs/a' does not exist"),
        ({"$ref": "file:///etc/passwd", "uniqueItems": True}, "file:///etc/passwd"),
        ({"$ref": "#"}, "no text at all"),
        ({"enum": []}, "Unsatisfiable"),
        (json.loads('{"items":' * 900 + '{"uniqueItems": true}' + "}" * 900), "nested too deeply"),
        ("[", "not JSON"),
        ([], "an object, not list"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_schema_is_named(process: GrammarProcess, schema: Any, words: str) -> None:
    with pytest.raises(GrammarError) as caught:
        process.fit(schema).result()
    assert words in str(caught.value)


def test_an_own_key_of_the_grammar_library_is_not_passed_on(process: GrammarProcess) -> None:
    given = {"type": "integer", "x-guidance": {"lenient": True, "whitespace_pattern": "x*"}}
    assert Fit.decode(process.fit(given).result()) == Fit({"type": "integer"})


def test_a_pattern_without_end_is_ended(checks: SchemaChecks) -> None:
    hostile = json.dumps({"pattern": r"^(\w|\w)*!"})
    assert checks.submit(hostile, json.dumps("a" * 60)).result() == f"{UNCHECKED}: the schema check took more than 1 s"
    assert checks.submit(hostile, '"a!"').result() == ""
    assert checks.submit("{}", '{"a').result() == "it is not JSON"
