"""Fits a client's JSON schema to the rules that a grammar can force.

A schema is used as it is if the grammar library supports all of it. Otherwise it is rewritten without a loss, if
possible. Else the rules that the library cannot force are left out, and `schema_check.py` checks the finished output.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .grammar import OPTIONS, GrammarError, bounded, schema_object
from .schema_check import require_schema
from .schema_tree import Schema, followed, modern, rewritten

# Formats that the grammar library can force; any other is an annotation, as JSON Schema has it.
FORCED_FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid")
)
LENIENT = {OPTIONS: {"lenient": True, "coerce_one_of": True}}
MAX_FORCED_COUNT = 2**31 - 1
MAX_NAMES = 1024  # of the keys that an object may have
# Faults that remain in the loosest form of a schema: no output could be valid.
_HOPELESS = ("Unsatisfiable", "it allows no text", "Pointer ", "Resource ")
# Keys of a subschema that names properties.
_PLAIN = {"type", "properties", "required", "title", "description", "allOf"}

Compile = Callable[[Schema], object]  # raises GrammarError


@dataclass(frozen=True, slots=True)
class Fit:
    """A schema for a grammar. `checked`: the schema that the output must be checked against, "" = none.

    `why` is the first reason for the check.
    """

    schema: Schema
    checked: str = ""
    why: str = ""

    def encode(self) -> str:
        """Return JSON text."""
        return json.dumps([self.schema, self.checked, self.why])

    @classmethod
    def decode(cls, text: str) -> Fit:
        """Return the fit that `encode` has written."""
        return cls(*json.loads(text))


def fit_schema(given: Any, compiles: Compile) -> Fit:
    """Return the tightest form of a schema that compiles.

    Raises GrammarError for a schema that is no JSON schema, has a dangling reference, or allows nothing.
    """
    schema = {key: value for key, value in schema_object(given).items() if key != OPTIONS}
    try:
        return _fitted(schema, compiles)
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None


def _fitted(schema: Schema, compiles: Compile) -> Fit:
    new = modern(schema)
    why = _fault(compiles, new)
    if why is None:
        return Fit(new)
    require_schema(new)
    checked = bounded(json.dumps(new))
    same = rewritten(new, partial(_without_loss, new))
    if _fault(compiles, same) is None:
        return Fit(same)
    loose = rewritten(same, partial(_forcible, compiles)) | LENIENT
    fault = _fault(compiles, loose)
    if fault is None:
        return Fit(loose, checked, why)
    if fault.startswith(_HOPELESS):
        raise GrammarError(fault)
    free = {key: schema[key] for key in ("type",) if key in schema}
    return Fit(free, checked, why)


def _fault(compiles: Compile, schema: Schema) -> str | None:
    """Return why the schema does not compile; None if it does."""
    try:
        compiles(schema)
    except GrammarError as error:
        return str(error)
    return None


def _without_loss(root: Schema, schema: Schema) -> Schema:
    """Return an equal schema, in keywords that the grammar library supports."""
    made = dict(schema)
    if "format" in made and made["format"] not in FORCED_FORMATS:
        del made["format"]
    if made.get("uniqueItems") is False:
        del made["uniqueItems"]
    if made.get("minContains") == 0 and "maxContains" not in made:
        made.pop("contains", None)
        del made["minContains"]
    return _closed(root, _named(root, made))


def _named(root: Schema, schema: Schema) -> Schema:
    """Rewrite `propertyNames` with a list of names or a pattern as `properties` or `patternProperties`."""
    if "propertyNames" not in schema:
        return schema
    rule = followed(root, schema["propertyNames"])
    made = {key: value for key, value in schema.items() if key != "propertyNames"}
    rule = {} if rule is True else rule
    if not isinstance(rule, dict):
        return schema
    bare = {key: value for key, value in rule.items() if key not in {"type", "title", "description", "$schema"}}
    if rule.get("type", "string") != "string":
        return schema
    if not bare:
        return made
    value = made.get("additionalProperties", True)
    properties = made.get("properties", {})
    if "patternProperties" in made:
        return schema
    if set(bare) == {"enum"} or set(bare) == {"const"}:
        names = [name for name in bare.get("enum", [bare.get("const")]) if isinstance(name, str)]
        if len(names) <= MAX_NAMES:
            made["properties"] = {name: properties.get(name, value) for name in names}
            return made | {"additionalProperties": False}
    if set(bare) == {"pattern"} and not properties:
        return made | {"patternProperties": {bare["pattern"]: value}, "additionalProperties": False}
    return schema


def _closed(root: Schema, schema: Schema) -> Schema:
    """Rewrite `unevaluatedProperties: false` as `additionalProperties: false`, if all subschemas name properties."""
    if schema.get("unevaluatedProperties") is not False or "additionalProperties" in schema:
        return schema
    names: list[str] = []
    parts = [{key: value for key, value in schema.items() if key in _PLAIN}]
    others = set(schema) - _PLAIN - {"unevaluatedProperties", "$defs", "definitions", "$id", "$comment"}
    while parts and not others:
        part = followed(root, parts.pop())
        if not isinstance(part, dict) or set(part) - _PLAIN:
            return schema
        names += part.get("properties", {})
        parts += part.get("allOf", [])
    if others or len(names) > MAX_NAMES:
        return schema
    made = {key: value for key, value in schema.items() if key != "unevaluatedProperties"}
    made["properties"] = {**dict.fromkeys(names, True), **schema.get("properties", {})}
    return made | {"additionalProperties": False}


def _forcible(compiles: Compile, schema: Schema) -> Schema:
    """Return the schema without patterns, factors and counts that the grammar library cannot compile."""
    made = dict(schema)
    for key in [key for key in made if key.startswith(("max", "min")) and isinstance(made[key], int)]:
        if key not in {"maximum", "minimum"} and made[key] > MAX_FORCED_COUNT:
            del made[key]
    for key, kind in (("pattern", "string"), ("multipleOf", "number")):
        if key in made and _fault(compiles, {"type": kind, key: made[key]}) is not None:
            del made[key]
    named = made.get("patternProperties", {})
    kept = {name: value for name, value in named.items() if _fault(compiles, {"pattern": name}) is None}
    if len(kept) < len(named):
        made["patternProperties"] = kept
        made.pop("additionalProperties", None)
    return made
