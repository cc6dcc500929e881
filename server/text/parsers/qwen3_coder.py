"""Calls as tags around plain text, of Qwen3-Coder: values get their types from the function's schema.

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
from typing import Any

from server.text.parsers.python_text import value_json
from server.text.parsers.source import (
    MAX_NAME_CHARS,
    Event,
    Functions,
    Reader,
    Source,
    blanks,
    gather,
    json_text,
    literal,
    until,
    up_to,
)

TAGS = ("<tool_call>", "</tool_call>")
FUNCTION, PARAMETER, END_OF_FUNCTION = "<function=", "<parameter=", "</function>"
END_OF_CALL = f"\n{END_OF_FUNCTION}\n{TAGS[1]}"
ENDS_OF_VALUE = ("\n</parameter>", "</parameter>", END_OF_CALL)
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def read_qwen3_coder(source: Source, functions: Functions) -> Reader[None]:
    """Calls, of which `<tool_call>` may be missing. After a call nothing counts up to its closing tag."""
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
        if not name.strip() or not end:
            yield Event("content", before + name)
            continue
        yield Event("call", name.strip())
        yield from _parameters(source, functions.get(name.strip(), {}))
        yield from blanks(source)
        yield from literal(source, (closing,))


def _parameters(source: Source, schema: dict[str, Any]) -> Reader[None]:
    """The arguments, up to the function's end; what stands between parameters is left out."""
    yield Event("arguments", "{")
    between = ""
    while mark := (yield from until(source, (PARAMETER, END_OF_FUNCTION, TAGS[1]), None)):
        if mark != PARAMETER:
            yield Event("arguments", "}")
            return
        name = (yield from up_to(source, ">\n", MAX_NAME_CHARS)).strip()
        yield from literal(source, (">",))
        yield Event("arguments", between + json.dumps(name, ensure_ascii=False) + ": ")
        between = ", "
        yield from literal(source, ("\n",))
        yield from _value(source, schema_of(schema, name))


def _value(source: Source, schema: dict[str, Any]) -> Reader[None]:
    """A value up to its end. Text goes on as it comes, anything else when it is whole."""
    types = types_of(schema)
    if types == {"string"}:
        yield Event("arguments", '"')
        mark = yield from until(source, ENDS_OF_VALUE, "arguments", json_text)
        yield Event("arguments", '"' if mark else "")
    else:
        text, mark = yield from gather(source, ENDS_OF_VALUE)
        yield Event("arguments", typed_json(text, types) if mark else "")
    if mark == END_OF_CALL:
        source.give_back(mark)


def schema_of(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Schema of the property `name`; one without a schema is text."""
    for found in (schema.get("properties", {}), {name: schema.get("additionalProperties")}):
        if isinstance(found, dict) and isinstance(inner := found.get(name), dict):
            return inner
    return {"type": "string"}


def types_of(schema: dict[str, Any]) -> set[str]:
    """The JSON types that a schema has, as far as it says so; none when it does not."""
    given = schema.get("type")
    if given is not None:
        return set(given) if isinstance(given, list) else {str(given)}
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {_TYPES.get(type(value), "null") for value in values}
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    found = [types_of(branch) for branch in branches if isinstance(branch, dict)]
    return set().union(*found) if all(found) else set()


def typed_json(text: str, types: set[str]) -> str:
    """`text` as JSON of one of `types` (empty: of any), else as a string."""
    text = text.strip()
    for candidate in (text, value_json(text)):
        kind = _kind(candidate)
        if kind and (not types or kind in types or (kind == "integer" and "number" in types)):
            return candidate or ""
    return json.dumps(text, ensure_ascii=False)


def _kind(text: str | None) -> str | None:
    """JSON type of a text; None when it is no JSON."""
    try:
        value = json.loads(text or "", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return "integer" if isinstance(value, float) and value.is_integer() else _TYPES.get(type(value), "null")


def _refuse(constant: str) -> float:
    raise ValueError(constant)
