"""Subschemas of a JSON schema: rewriting them, following references, and converting older drafts to 2020-12."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]

# Keywords whose value is a subschema, a list of them, or an object with one for each of its keys.
_ONE = {
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
}
_LIST = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
_MAP = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
_COUNTS = (
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
)
MAX_REFERENCES = 32  # in a chain
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z_])")


def rewritten(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """Return a copy with `change` applied to every subschema, inner ones first."""
    if not isinstance(schema, dict):
        return schema
    made: Schema = {}
    for key, value in schema.items():
        if key in _MAP and isinstance(value, dict):
            made[key] = {name: rewritten(inner, change) for name, inner in value.items()}
        elif key in _LIST and isinstance(value, list):
            made[key] = [rewritten(inner, change) for inner in value]
        else:
            made[key] = rewritten(value, change) if key in _ONE else value
    return change(made)


def followed(root: Schema, schema: Any) -> Any:
    """Return the schema at the end of a chain of references within `root`; `schema` itself if it is no reference."""
    for _ in range(MAX_REFERENCES):
        if not (isinstance(schema, dict) and set(schema) == {"$ref"}):
            return schema
        found = _at(root, schema["$ref"])
        if found is None:
            return schema
        schema = found
    return schema


def _at(root: Schema, reference: Any) -> Any:
    """Return the value at a pointer such as `#/$defs/x`; None if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for part in unquote(reference[2:]).split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    return found


def modern(schema: Schema) -> Schema:
    """Return the schema in draft 2020-12, from older drafts or OpenAPI 3.0; counts become integers."""
    made: Schema = rewritten(schema, _modern)
    return made


def _modern(schema: Schema) -> Schema:
    made = {key: value for key, value in schema.items() if key != "$schema"}
    for key in _COUNTS:
        if isinstance(value := made.get(key), float) and value.is_integer():
            made[key] = int(value)
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(made.get(exclusive), bool) and made.pop(exclusive) and bound in made:
            made[exclusive] = made.pop(bound)
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        if "additionalItems" in made:
            made["items"] = made.pop("additionalItems")
    if isinstance(dependencies := made.get("dependencies"), dict):
        del made["dependencies"]
        for new, is_list in (("dependentRequired", True), ("dependentSchemas", False)):
            old = {key: value for key, value in dependencies.items() if isinstance(value, list) == is_list}
            if old and isinstance(made.get(new, {}), dict):
                made[new] = {**old, **made.get(new, {})}
    return made


def python_pattern(pattern: Any) -> re.Pattern[str] | None:
    """Return an ECMAScript pattern in Python's form; None if Python cannot read it."""
    try:
        return re.compile(_NAMED_GROUP.sub("(?P<", pattern))
    except (re.error, RecursionError, OverflowError, TypeError):
        return None
