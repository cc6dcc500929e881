"""Calls as tags around plain text, by Qwen3-Coder, GLM, DeepSeek, MiniMax and Seed: values have the schema's types.

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
from dataclasses import dataclass
from typing import Any

from .python_text import value_json
from .source import MAX_NAME_CHARS, Event, Functions, Reader, Source, gathered, json_text

NAME_PATTERN = re.compile(r"[A-Za-z0-9_.-]+")  # any function that a request can have
IS_TEXT, IS_NO_TEXT = '" string="true">', '" string="false">'  # DeepSeek's tags say whether a value is text
_ALIASES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "list": "array", "dict": "object"}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True)
class Tags:
    """Texts of one form: `opening function NAME name_end, (parameter KEY key_end value value_end)*, function_end`."""

    opening: tuple[str, ...]  # alternatives
    closing: tuple[str, ...]
    function: str = "<function="  # "": the name follows `opening`
    name_end: str = ">"  # "": the end of the line, or the next tag
    parameter: str = "<parameter="
    key_end: tuple[str, ...] = (">",)  # alternatives
    value_begin: str = ""
    value_end: str = "</parameter>"
    function_end: str = "</function>"
    has_lines: bool = False  # a value has lines of its own

    @property
    def ends(self) -> tuple[str, ...]:
        """Marks that end a value which nothing in it has opened."""
        return (f"\n{self.value_end}", self.value_end) if self.has_lines else (self.value_end,)

    @property
    def end_of_call(self) -> str:
        """End of a call whose last value was not closed."""
        return f"\n{self.function_end}\n{self.closing[0]}" if self.function else f"\n{self.closing[0]}"

    @property
    def call(self) -> str:
        """Beginning of a call."""
        return self.function or self.opening[0]

    @property
    def in_value(self) -> tuple[str, ...]:
        """Marks that a value is searched for."""
        return (*self.ends, self.end_of_call, f"\n{self.parameter}", self.parameter, self.call)


QWEN = Tags(("<tool_call>",), ("</tool_call>",), has_lines=True)
SEED = Tags(("<seed:tool_call>",), ("</seed:tool_call>",))
GLM = Tags(
    ("<tool_call>",),
    ("</tool_call>",),
    function="",
    name_end="",
    parameter="<arg_key>",
    key_end=("</arg_key>",),
    value_begin="<arg_value>",
    value_end="</arg_value>",
    function_end="</tool_call>",
)
MINIMAX = Tags(
    ("<minimax:tool_call>",),
    ("</minimax:tool_call>",),
    function='<invoke name="',
    name_end='">',
    parameter='<parameter name="',
    key_end=('">',),
    function_end="</invoke>",
)
DSML = Tags(
    ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
    ("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
    function='<｜DSML｜invoke name="',
    name_end='">',
    parameter='<｜DSML｜parameter name="',
    key_end=(IS_TEXT, IS_NO_TEXT, '">'),
    value_end="</｜DSML｜parameter>",
    function_end="</｜DSML｜invoke>",
)


def read_tagged(source: Source, functions: Functions, tags: Tags) -> Reader[None]:
    """Read calls; where they have a tag with the name, the opening may be missing. Blanks before a closing are dropped.

    An opening stands before one call, or before several.
    """
    marks = (*tags.opening, tags.function) if tags.function else tags.opening
    while before := (yield from source.until(marks, "content")):
        if before in tags.opening and tags.function:
            before += yield from source.blanks()
            mark = yield from source.literal((tags.function,))
            if not mark:
                yield Event("content", before)
                continue
            before += mark
        name, end = yield from _name(source, tags)
        if not NAME_PATTERN.fullmatch(name.strip()) or end is None:
            yield Event("content", before + name + (end or ""))
            continue
        yield Event("call", name.strip())
        yield from _parameters(source, functions.get(name.strip(), {}), tags)
        yield from source.blanks()
        yield from source.literal(tags.closing)


def _name(source: Source, tags: Tags) -> Reader[tuple[str, str | None]]:
    """Return a function's name and the text that ends it; None where none does."""
    name = yield from source.up_to((tags.name_end or "<")[0] + "\n", MAX_NAME_CHARS)
    if tags.name_end:
        return name, (yield from source.literal((tags.name_end,))) or None
    return name, "" if len(name) < MAX_NAME_CHARS and source.peek(1) else None


def _parameters(source: Source, schema: dict[str, Any], tags: Tags) -> Reader[None]:
    """Read the arguments up to the function's end. Text between parameters is dropped."""
    yield Event("arguments", "{")
    between, unseen = "", set(schema.get("properties") or ())
    while mark := (yield from source.until((tags.parameter, tags.function_end, *tags.closing), None)):
        if mark != tags.parameter:
            yield Event("arguments", "}")
            return
        name = (yield from _key(source, tags)).strip()
        end = yield from source.literal(tags.key_end)
        if tags.value_begin:
            yield from source.blanks()
            yield from source.literal((tags.value_begin,))
        yield Event("arguments", between + json.dumps(name, ensure_ascii=False) + ": ")
        between = ", "
        unseen.discard(name)
        if tags.has_lines:
            yield from source.literal(("\n",))
        yield from _value(source, _types(schema, name, end), unseen, tags)


def _key(source: Source, tags: Tags) -> Reader[str]:
    return (yield from source.up_to(tags.key_end[0][0] + "\n", MAX_NAME_CHARS))


def _types(schema: dict[str, Any], name: str, end: str) -> set[str]:
    """Return the types that a value may have, by the schema, and by the tag that ends its key."""
    types = types_of(schema_of(schema, name))
    if end == IS_NO_TEXT and types == {"string"}:
        return types if name in (schema.get("properties") or ()) else set()
    return {"string"} if end == IS_TEXT and not types else types


def _value(source: Source, types: set[str], unseen: set[str], tags: Tags) -> Reader[None]:
    """Read a value to its end. Text is yielded as it arrives, other types when they are complete."""
    if types == {"string"}:
        yield Event("arguments", '"')
        mark = yield from _to_end(source, unseen, tags, json_text)
        yield Event("arguments", '"' if mark else "")
    else:
        text, mark = yield from gathered(_to_end(source, unseen, tags, str))
        yield Event("arguments", typed_json(text, types) if mark else "")
    if mark in (tags.end_of_call, f"\n{tags.parameter}"):
        source.give_back(mark)


def _to_end(source: Source, unseen: set[str], tags: Tags, change: Callable[[str], str]) -> Reader[str]:
    """Read the text of a value; return the mark that ends it.

    Marks that are opened and closed within the value, as in a file about such calls, belong to its text. A value that
    the model forgot to close ends at the next parameter of `unseen`, or at the end of the call.
    """
    following = f"\n{tags.parameter}"
    parameters = calls = 0  # open within the value
    while True:
        mark = yield from source.until(tags.in_value, "arguments", change)
        name = ""
        if mark in (following, tags.parameter):
            name = yield from _key(source, tags)
            is_tag = yield from source.is_next(tags.key_end[0][0])
            if mark == following and is_tag and not calls and name.strip() in unseen:
                source.give_back(name)
                return mark
            parameters += is_tag
        elif mark == tags.call:
            calls += 1
        elif mark in tags.ends and parameters:
            parameters -= 1
        elif mark == tags.end_of_call and calls:
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
