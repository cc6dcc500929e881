"""Grammars of arguments that are no JSON object: one rule a property, in the order of the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from ..grammar import OPTIONS, GrammarError, json_schema, quoted
from ..schema_tree import rewritten
from .shapes import IS_TEXT, KEY, Arguments, ParameterShape

# Keys of a schema that the rules follow, and keys without effect.
_KEPT = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", OPTIONS}
_SILENT = {"title", "description", "$schema", "$id", "$comment", "examples", "default", "strict", "deprecated"}
_TEXT_KEYS = {"type", "enum", "const", "$defs", OPTIONS} | _SILENT
_WHOLE = "whole"  # the definition with the schema of all arguments
# Characters that names of properties cannot have, by form.
_BARRED = {"keywords": " \t\r\n,:=()[]{}'\"<>", "parameters": "\r\n<>"}
Spell = Callable[[str], str]  # a text as tokens and literals of a grammar


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


def keyword_rules(name: str, schema: dict[str, Any], form: ParameterShape, spell: Spell) -> list[str]:
    """Return rules of `name`: `key=value, key=value`, values as JSON. Raises GrammarError for an impossible key."""
    properties, between = _properties(schema), spell(form.between)
    if properties is None:
        return [
            f"{name}: ({name}_any ({between} {name}_any)*)?",
            rf"{name}_any: /[A-Za-z_][A-Za-z0-9_]*/ {spell(form.head.replace(KEY, ''))} %json {json_schema({})}",
        ]
    rules = []
    for i, each in enumerate(properties):
        value, more = _value(f"{name}_v{i}", each.schema, form, spell)
        rules += [f"{name}_{i}: {_head(each, form, 'keywords', spell)} {value}", *more]
    required = [i for i, each in enumerate(properties) if each.is_required]
    firsts = range(required[0] + 1 if required else len(properties))
    # The first property has no comma before it.
    ways = [f"{name}_{i} {name}_after{i}" for i in firsts] + ([] if required else [quoted("")])
    rules.append(f"{name}: {' | '.join(ways)}")
    for i in range(len(properties)):
        after = (
            f"({between} {name}_{i + 1}){'' if properties[i + 1].is_required else '?'} {name}_after{i + 1}"
            if (i + 1 < len(properties))
            else quoted("")
        )
        rules.append(f"{name}_after{i}: {after}")
    return rules


def parameter_rules(name: str, schema: dict[str, Any], form: ParameterShape, spell: Spell) -> list[str]:
    """Return rules of `name`: head, value and tail of each property; text as it is, other values as JSON.

    Raises GrammarError for a name that cannot be in such a tag.
    """
    properties = _properties(schema)
    if properties is None:
        before, after = form.head.replace(IS_TEXT, "true").split(KEY)
        value, more = _text(f"{name}_any", form.tail, spell)
        return [rf"{name}: ({spell(before)} /[^>\n\"<]+/ {spell(after)} {value})*", *more]
    rules = [
        f"{name}: " + (" ".join(f"{name}_{i}{'' if p.is_required else '?'}" for i, p in enumerate(properties)) or '""')
    ]
    for i, each in enumerate(properties):
        value, more = _value(f"{name}_v{i}", each.schema, form, spell)
        rules += [f"{name}_{i}: {_head(each, form, 'parameters', spell)} {value}", *more]
    return rules


def _head(each: _Property, form: ParameterShape, kind: Arguments, spell: Spell) -> str:
    is_text = "true" if each.schema.get("type") == "string" else "false"
    return spell(form.head.replace(KEY, _plain(each.name, kind)).replace(IS_TEXT, is_text))


def _value(rule: str, schema: dict[str, Any], form: ParameterShape, spell: Spell) -> tuple[str, list[str]]:
    """Return a value up to the end of its parameter, and the rules that it needs."""
    if schema.get("type") != "string" or not (form.tail or form.quote):
        return f"%json {json_schema(schema)} {spell(form.tail)}", []
    opening, tail = spell(form.quote), form.quote or form.tail
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        texts = " | ".join(quoted(str(value)) for value in values)
        return f"{opening} ({texts}) {spell(tail)}", []
    value, rules = _text(rule, tail, spell)
    return f"{opening} {value}", rules


def _text(rule: str, tail: str, spell: Spell) -> tuple[str, list[str]]:
    """Return any text up to `tail`; if the tail has a token, no text can be mistaken for it."""
    mark = tail.strip()
    spelled, rest = spell(mark), tail[tail.index(mark) + len(mark) :]
    if "<[" in spelled:
        return f"{rule} {spelled} {spell(rest)}", [f"{rule}: /(?s:.*)/"]
    return f"{rule} {spell(rest)}", [f"{rule}[suffix={spelled}]: /(?s:.*)/"]


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
