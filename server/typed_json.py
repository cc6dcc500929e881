"""Reads untrusted JSON as typed records (msgspec): bounded and strict.

A refusal names the key by its path, its value, and what the value must be. The parser is the standard library's, since
msgspec's silently takes the last of two equal keys. The types are msgspec's.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from .host.regular_file import read_regular, why_unreadable

MAX_SHOWN = 80  # characters of an offending value that a message repeats
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxdict = 12
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = MAX_SHOWN + 2

T = TypeVar("T")

# Values of records, with the limits that records share.
Text = Annotated[str, msgspec.Meta(pattern=r"\S")]  # not blank
Count = Annotated[int, msgspec.Meta(ge=1)]
Texts = Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
Counts = Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class JsonError(ValueError):
    """The text is no JSON, or lacks the record's form. `str()` is fit to be shown to a user."""


def read(path: Path, max_bytes: int, record: type[T]) -> T:
    """Return the JSON of a file of at most `max_bytes` bytes as a `record`. Raises JsonError without the name."""
    try:
        text = read_regular(path, max_bytes)
    except OSError as error:
        raise JsonError(why_unreadable(error)) from None
    return decode(text, record)


def decode(text: str | bytes, record: type[T]) -> T:
    """Return JSON as a `record`, a type that msgspec supports. Unknown keys are ignored, types are strict."""
    return convert(parse(text), record)


def parse(text: str | bytes) -> Any:
    """Return JSON as Python values. Raises JsonError, also for duplicate keys and numbers that are not finite."""
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except JsonError:
        raise
    except RecursionError:
        raise JsonError("is not JSON: nested too deep") from None
    except ValueError as error:  # malformed, not UTF-8, or an integer of thousands of digits
        raise JsonError(f"is not JSON: {error}") from None
    return value


def convert(value: Any, record: type[T], path: str = "") -> T:
    """Return a parsed `value` as a `record`. `path`, such as "rope_scaling.", precedes keys in messages."""
    try:
        return msgspec.convert(value, record, str_keys=True)
    except msgspec.ValidationError as error:
        raise JsonError(_translated(str(error), value, record, path)) from None


def complaint(key: str, value: object, problem: str) -> str:
    """Return a message about a value, such as "top_p is 2.0: expected `float` <= 1.0"."""
    return f"{key} is {shown(value)}: {problem}"


def shown(value: object) -> str:
    """Return `value` in a short form for messages."""
    if isinstance(value, int):
        text = repr(value) if value.bit_length() < 256 else "an integer of over 77 digits"
    else:
        text = repr(value) if isinstance(value, str) else _REPR.repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def shown_key(key: str) -> str:
    """Return a key as a component of a path: as it is, if that can be printed."""
    return key if key.isprintable() and len(key) <= MAX_SHOWN else shown(key)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise JsonError(f"key {shown(twice)} appears twice")
    return found


def _no_number(name: str) -> NoReturn:
    raise JsonError(f"is not JSON: {name}")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise JsonError(f"is not JSON: {shown(text)} is beyond the largest float")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite)


def _translated(message: str, value: Any, record: Any, path: str) -> str:
    """Return the message "top_p is 2.0: expected `float` <= 1.0" for "Expected `float` <= 1.0 - at `$.top_p`"."""
    problem, _, place = message.partition(" - at `")
    problem = problem[0].lower() + problem[1:]
    key, value, kind = _located(value, record, place.rpartition("$")[2].removesuffix("`"))
    key = f"{path}{key}" if key else path.removesuffix(".")
    missing = re.fullmatch(r"object missing required field `(.+)`", problem)
    if missing:
        return f"{key}.{missing.group(1)} is missing".removeprefix(".")
    if problem.startswith("invalid enum value"):
        problem = f"expected {' or '.join(map(repr, _choices(kind)))}"
    return complaint(key, value, problem) if key else problem


def _located(value: Any, kind: Any, place: str) -> tuple[str, Any, Any]:
    """Return the dotted path, the value and the type at msgspec's `place`, such as `.files[0].entries[...].offset`.

    msgspec writes [...] for any key of a dict; the key is the first one whose value lacks the type. The path ends above
    an empty key.
    """
    path = ""
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.{3})\]", place):
        inner, key = _inner(kind, name, index), name
        if index == "...":
            items = value.items() if isinstance(value, dict) else ()
            key = next((each for each, item in items if not _is_of(item, inner)), "")
            if not key:
                break
        value, kind = value[key or int(index)], inner
        path += f".{shown_key(key)}" if key else f"[{index}]"
    return path.removeprefix("."), value, kind


def _inner(kind: Any, name: str, index: str) -> Any:
    """Return the type of a field `name` of a record, or of the items of a container."""
    for each in _alternatives(kind):
        arguments = get_args(each)
        if name and not arguments:
            hints = get_type_hints(each, include_extras=True)
            if name in hints:
                return hints[name]
        elif index == "..." and get_origin(each) is dict:
            return arguments[1]
        elif index and get_origin(each) in (list, tuple):
            return arguments[min(int(index), len(arguments) - 1)] if arguments[-1] is not ... else arguments[0]
    return Any


def _alternatives(kind: Any) -> Iterator[Any]:
    """Yield the types of a union, without their limits."""
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for each in get_args(kind):
            yield from _alternatives(each)
    else:
        yield kind


def _choices(kind: Any) -> list[Any]:
    return [choice for each in _alternatives(kind) if get_origin(each) is Literal for choice in get_args(each)]


def _is_of(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError:
        return False
    return True
