"""Grammars of arguments that are no JSON object: one rule a property, in the order of the schema."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ..grammar import OPTIONS, GrammarError, json_schema, quoted
from ..schema_tree import rewritten
from .shapes import Arguments

# Keys of a schema that the rules follow, and keys without effect.
_KEPT = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", OPTIONS}
_SILENT = {"title", "description", "$schema", "$id", "$comment", "examples", "default", "strict", "deprecated"}
_TEXT_KEYS = {"type", "enum", "const", "$defs", OPTIONS} | _SILENT
_END_OF_VALUE = "\n</parameter>\n"
_WHOLE = "whole"  # the definition with the schema of all arguments
# Characters that names of properties cannot have, by form.
_BARRED = {"keywords": " \t\r\n,:=()[]{}'\"<>", "parameters": "\r\n<>"}


class _Property(NamedTuple):
    name: str
    schema: dict[str, Any]
    is_required: bool


def is_held(form: Arguments, schema: dict[str, Any]) -> bool:
    """Return whether the rules of this form enforce all of a schema; if not, arguments must be checked."""
    if form == "json":
        return True
    if any(key not in _KEPT | _SILENT for key in schema):
        return False
    if False in (inner := schema.get("properties") or {}).values():
        return False
    properties = _properties(schema)
    if properties is None or any(each.name not in inner for each in properties):
        return schema.get("additionalProperties", True) is True
    texts = [each.schema for each in properties if each.schema.get("type") == "string"]
    return form == "keywords" or all(key in _TEXT_KEYS for text in texts for key in text)


def keyword_rules(name: str, schema: dict[str, Any]) -> list[str]:
    """Return rules of `name`: `key=value, key=value`, values as JSON. Raises GrammarError for an impossible key."""
    properties = _properties(schema)
    if properties is None:
        return [
            f'{name}: ({name}_any (", " {name}_any)*)?',
            rf'{name}_any: /[A-Za-z_][A-Za-z0-9_]*/ "=" %json {json_schema({})}',
        ]
    rules = [
        f"{name}_{i}: {quoted(_plain(each.name, 'keywords') + '=')} %json {json_schema(each.schema)}"
        for i, each in enumerate(properties)
    ]
    required = [i for i, each in enumerate(properties) if each.is_required]
    firsts = range(required[0] + 1 if required else len(properties))
    # The first property has no comma before it.
    ways = [f"{name}_{i} {name}_after{i}" for i in firsts] + ([] if required else [quoted("")])
    rules.append(f"{name}: {' | '.join(ways)}")
    for i in range(len(properties)):
        after = (
            f'(", " {name}_{i + 1}){"" if properties[i + 1].is_required else "?"} {name}_after{i + 1}'
            if (i + 1 < len(properties))
            else quoted("")
        )
        rules.append(f"{name}_after{i}: {after}")
    return rules


def parameter_rules(name: str, schema: dict[str, Any]) -> list[str]:
    """Return rules of `name`: `<parameter=key>`, value and end of each property; text as it is, other values as JSON.

    Raises GrammarError for a name that cannot be in such a tag.
    """
    properties = _properties(schema)
    if properties is None:
        return [
            rf'{name}: ("<parameter=" /[^>\n]+/ ">\n" {name}_any "\n")*',
            rf'{name}_any[suffix="</parameter>"]: /(?s:.*)/',
        ]
    rules = [
        f"{name}: " + (" ".join(f"{name}_{i}{'' if p.is_required else '?'}" for i, p in enumerate(properties)) or '""')
    ]
    for i, each in enumerate(properties):
        value, more = _value(f"{name}_v{i}", each.schema)
        tag = f"<parameter={_plain(each.name, 'parameters')}>\n"
        rules += [f"{name}_{i}: {quoted(tag)} {value}", *more]
    return rules


def _value(rule: str, schema: dict[str, Any]) -> tuple[str, list[str]]:
    """Return a value up to the end of its parameter, and the rules that it needs."""
    if schema.get("type") != "string":
        return f"%json {json_schema(schema)} {quoted(_END_OF_VALUE)}", []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        texts = " | ".join(quoted(str(value)) for value in values)
        return f"({texts}) {quoted(_END_OF_VALUE)}", []
    return f"{rule} {quoted(chr(10))}", [f'{rule}[suffix="</parameter>"]: /(?s:.*)/']


def _properties(schema: dict[str, Any]) -> list[_Property] | None:
    """Return the properties in order; None if any properties are allowed."""
    given = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if isinstance(name, str)]
    if not given and not required and schema.get("additionalProperties", True) is not False:
        return None
    whole = rewritten(schema, _retargeted)
    options = {OPTIONS: schema[OPTIONS]} if OPTIONS in schema else {}
    named = {**whole.get("properties", {}), **{name: {} for name in required if name not in given}}
    return [_Property(name, _alone(inner, whole) | options, name in required) for name, inner in named.items()]


def _alone(schema: Any, whole: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one property. If it has a reference, it includes the whole schema as a definition."""
    if not isinstance(schema, dict):
        return {}
    return {**schema, "$defs": {_WHOLE: whole}} if '"$ref"' in json.dumps(schema) else schema


def _retargeted(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with its reference redirected to the definition that `_alone` adds."""
    target = schema.get("$ref")
    if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
        return schema
    return {**schema, "$ref": f"#/$defs/{_WHOLE}{target[1:]}"}


def _plain(name: str, form: Arguments) -> str:
    """Return `name`. Raises GrammarError if it cannot be in a call."""
    if not name or name != name.strip() or any(char in _BARRED[form] for char in name):
        raise GrammarError(f"the property {json.dumps(name)[:60]} cannot be named in this model's form of calls")
    return name
