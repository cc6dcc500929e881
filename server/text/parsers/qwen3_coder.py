"""Calls as tags around plain text, by Qwen3-Coder: values have the types of the function's schema.

<tool_call>
<function=name>
<parameter=key>
value
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from .python_text import value_json
from .source import (
    MAX_NAME_CHARS,
    Event,
    Functions,
    Reader,
    Source,
    blanks,
    gathered,
    is_next,
    json_text,
    literal,
    until,
    up_to,
)

TAGS = ("<tool_call>", "</tool_call>")
FUNCTION, PARAMETER, END_OF_FUNCTION = "<function=", "<parameter=", "</function>"
END_OF_CALL = f"\n{END_OF_FUNCTION}\n{TAGS[1]}"
NEXT = f"\n{PARAMETER}"
CLOSING = ("\n</parameter>", "</parameter>")
MARKS_IN_VALUE = (*CLOSING, END_OF_CALL, NEXT, PARAMETER, FUNCTION)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")  # any function that a request can have
_ALIASES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "list": "array", "dict": "object"}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def read_qwen3_coder(source: Source, functions: Functions) -> Reader[None]:
    """Read calls, whose `<tool_call>` may be missing. Blanks before the closing tag are dropped."""
    opening, closing = TAGS
    while before := (yield from until(source, (opening, FUNCTION), "content")):
        if before == opening:
            before += yield from blanks(source)
            mark = yield from literal(source, (FUNCTION,))
            if not mark:
                yield Event("content", before)
                continue
            before += mark
        name = yield from up_to(source, ">\n", MAX_NAME_CHARS)
        end = yield from literal(source, (">",))
        if not _NAME.fullmatch(name.strip()) or not end:
            yield Event("content", before + name + end)
            continue
        yield Event("call", name.strip())
        yield from _parameters(source, functions.get(name.strip(), {}))
        yield from blanks(source)
        yield from literal(source, (closing,))


def _parameters(source: Source, schema: dict[str, Any]) -> Reader[None]:
    """Read the arguments up to the function's end. Text between parameters is dropped."""
    yield Event("arguments", "{")
    between, unseen = "", set(schema.get("properties") or ())
    while mark := (yield from until(source, (PARAMETER, END_OF_FUNCTION, TAGS[1]), None)):
        if mark != PARAMETER:
            yield Event("arguments", "}")
            return
        name = (yield from up_to(source, ">\n", MAX_NAME_CHARS)).strip()
        yield from literal(source, (">",))
        yield Event("arguments", between + json.dumps(name, ensure_ascii=False) + ": ")
        between = ", "
        unseen.discard(name)
        yield from literal(source, ("\n",))
        yield from _value(source, schema_of(schema, name), unseen)


def _value(source: Source, schema: dict[str, Any], unseen: set[str]) -> Reader[None]:
    """Read a value to its end. Text is yielded as it arrives, other types when they are complete."""
    types = types_of(schema)
    if types == {"string"}:
        yield Event("arguments", '"')
        mark = yield from _to_end(source, unseen, json_text)
        yield Event("arguments", '"' if mark else "")
    else:
        text, mark = yield from gathered(_to_end(source, unseen, str))
        yield Event("arguments", typed_json(text, types) if mark else "")
    if mark in (END_OF_CALL, NEXT):
        source.give_back(mark)


def _to_end(source: Source, unseen: set[str], change: Callable[[str], str]) -> Reader[str]:
    """Read the text of a value; return the mark that ends it.

    Marks that are opened and closed within the value, as in a file about such calls, belong to its text. A value that
    the model forgot to close ends at the next parameter of `unseen`, or at the end of the call.
    """
    parameters = calls = 0  # open within the value
    while True:
        mark = yield from until(source, MARKS_IN_VALUE, "arguments", change)
        name = ""
        if mark in (NEXT, PARAMETER):
            name = yield from up_to(source, ">\n", MAX_NAME_CHARS)
            is_tag = yield from is_next(source, ">")
            if mark == NEXT and is_tag and not calls and name.strip() in unseen:
                source.give_back(name)
                return mark
            parameters += is_tag
        elif mark == FUNCTION:
            calls += 1
        elif mark in CLOSING and parameters:
            parameters -= 1
        elif mark == END_OF_CALL and calls:
            calls -= 1
        else:
            return mark
        yield Event("arguments", change(mark + name))


def schema_of(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of the property `name`; a property without a schema is text."""
    for found in (schema.get("properties", {}), {name: schema.get("additionalProperties")}):
        if isinstance(found, dict) and isinstance(inner := found.get(name), dict):
            return inner
    return {"type": "string"}


def types_of(schema: dict[str, Any]) -> set[str]:
    """Return the JSON types that a schema states; none if it states no type."""
    given = schema.get("type")
    if given is not None:
        return {_ALIASES.get(str(each), str(each)) for each in (given if isinstance(given, list) else [given])}
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {_TYPES.get(type(value), "null") for value in values}
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    found = [types_of(branch) for branch in branches if isinstance(branch, dict)]
    return set().union(*found) if all(found) else set()


def typed_json(text: str, types: set[str]) -> str:
    """Return `text` as JSON of one of `types` (empty: of any), else as a string.

    If the value can be no string, a JSON string may hold it.
    """
    text = text.strip()
    candidates = [text, value_json(text)]
    if types and "string" not in types and _kind(text) == "string":
        inner = json.loads(text)
        candidates += [inner, value_json(inner)]
    for candidate in candidates:
        kind = _kind(candidate)
        if kind and (not types or kind in types or (kind == "integer" and "number" in types)):
            return candidate or ""
    return json.dumps(text, ensure_ascii=False)


def _kind(text: str | None) -> str | None:
    """Return the JSON type of a text; None if it is no JSON."""
    try:
        value = json.loads(text or "", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return "integer" if isinstance(value, float) and value.is_integer() else _TYPES.get(type(value), "null")


def _refuse(constant: str) -> float:
    raise ValueError(constant)
