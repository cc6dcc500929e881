"""Grammars of arguments that are no JSON object: each property on its own, in the order of the schema."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from server.text.grammar import GrammarError, json_schema, quoted

# Keys of a schema that the rules keep, or that rule nothing out.
_KEPT = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_SILENT = {"title", "description", "$schema", "$id", "$comment", "examples", "default", "strict", "deprecated"}
_TEXT_KEYS = {"type", "enum", "const", "$defs", "definitions"} | _SILENT
_END_OF_VALUE = "\n</parameter>\n"


class _Property(NamedTuple):
    name: str
    schema: dict[str, Any]
    is_required: bool


def keyword_rules(name: str, schema: dict[str, Any]) -> list[str]:
    """Rules of `name`: `key=value, key=value`, values as JSON. Raises GrammarError where a schema cannot be held."""
    properties = _properties(schema)
    if properties is None:
        return [
            f'{name}: ({name}_any (", " {name}_any)*)?',
            rf'{name}_any: /[A-Za-z_][A-Za-z0-9_]*/ "=" %json {json_schema({})}',
        ]
    rules = [
        f"{name}_{i}: {quoted(_plain(each.name) + '=')} %json {json_schema(each.schema)}"
        for i, each in enumerate(properties)
    ]
    required = [i for i, each in enumerate(properties) if each.is_required]
    firsts = range(required[0] + 1 if required else len(properties))
    # Whatever comes first has no comma before it.
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
    """Rules of `name`: `<parameter=key>`, value and end of each property, text as it is and other values as JSON."""
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
        rules += [f"{name}_{i}: {quoted(f'<parameter={_plain(each.name)}>' + chr(10))} {value}", *more]
    return rules


def _value(rule: str, schema: dict[str, Any]) -> tuple[str, list[str]]:
    """A value up to the end of its parameter, and the rules that it takes."""
    if schema.get("type") != "string":
        return f"%json {json_schema(schema)} {quoted(_END_OF_VALUE)}", []
    for key in schema:
        if key not in _TEXT_KEYS:
            raise GrammarError(f"{key!r} of a string cannot be held in this model's form of calls, which is plain text")
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        texts = " | ".join(quoted(str(value)) for value in values)
        return f"({texts}) {quoted(_END_OF_VALUE)}", []
    return f"{rule} {quoted(chr(10))}", [f'{rule}[suffix="</parameter>"]: /(?s:.*)/']


def _properties(schema: dict[str, Any]) -> list[_Property] | None:
    """The properties in order; None where any may come. Raises GrammarError for what no rule of one can hold."""
    for key in schema:
        if key not in _KEPT | _SILENT:
            raise GrammarError(f"{key!r} at its top cannot be held in this model's form of calls, which is no JSON")
    given = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if isinstance(name, str)]
    if not given and not required and schema.get("additionalProperties", True) is not False:
        return None
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    named = {**given, **{name: {} for name in required if name not in given}}
    return [
        _Property(name, {**(inner if isinstance(inner, dict) else {}), **shared}, name in required)
        for name, inner in named.items()
    ]


def _plain(name: str) -> str:
    """`name`, where it can stand in a call. Raises GrammarError otherwise."""
    if not name or any(char in " \t\r\n,:=()[]{}'\"<>" for char in name):
        raise GrammarError(f"the property {json.dumps(name)[:60]} cannot be named in this model's form of calls")
    return name
