"""JSON that others wrote, trusted in nothing, as typed records (msgspec): bounded, strict, never guessed at.

A refusal names the key by its path, the value there and what it must be. The parser is the standard library's, since
msgspec's takes the last of two equal keys without a word; the types are msgspec's.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from neuronserve.server.host.regular_file import read_regular, why_unreadable

MAX_SHOWN = 80  # characters of an offending value that a message repeats
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxdict = 12
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = MAX_SHOWN + 2

T = TypeVar("T")


class JsonError(ValueError):
    """The text is no JSON, or not of the record's form. `str()` is fit to be shown to a user."""


def read(path: Path, max_bytes: int, record: type[T]) -> T:
    """The JSON in a file of at most `max_bytes` bytes as a `record`. Raises JsonError, which does not name the file."""
    try:
        text = read_regular(path, max_bytes)
    except OSError as error:
        raise JsonError(why_unreadable(error)) from None
    return decode(text, record)


def decode(text: str | bytes, record: type[T]) -> T:
    """The JSON `text` as a `record`, a type that msgspec knows: unknown keys are passed over, types are strict."""
    return convert(parse(text), record)


def parse(text: str | bytes) -> Any:
    """The JSON `text` without a type. Refuses keys that appear twice, and numbers that are not finite."""
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a pair of surrogates is no text
    except JsonError:
        raise
    except RecursionError:
        raise JsonError("is not JSON: nested too deep") from None
    except ValueError as error:  # malformed, not UTF-8, or an integer of thousands of digits
        raise JsonError(f"is not JSON: {error}") from None
    return value


def convert(value: Any, record: type[T], path: str = "") -> T:
    """`value`, which has been parsed, as a `record`. `path` is put before keys in messages, such as "rope_scaling."."""
    try:
        return msgspec.convert(value, record, str_keys=True)
    except msgspec.ValidationError as error:
        raise JsonError(_translated(str(error), value, record, path)) from None


def complaint(key: str, value: object, problem: str) -> str:
    """The one form of a message about a value: "top_p is 2.0: expected `float` <= 1.0"."""
    return f"{key} is {shown(value)}: {problem}"


def shown(value: object) -> str:
    """`value` as a message may repeat it: short, whatever was in the file."""
    if isinstance(value, int):
        text = repr(value) if value.bit_length() < 256 else "an integer of over 77 digits"
    else:
        text = repr(value) if isinstance(value, str) else _REPR.repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def shown_key(key: str) -> str:
    """A key of a file as a part of a path: as it is when that can be printed."""
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
    """ "top_p is 2.0: expected `float` <= 1.0" of msgspec's "Expected `float` <= 1.0 - at `$.top_p`"."""
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
    """The dotted path, the value and the type at msgspec's `place`, such as `.files[0].entries[...].offset`.

    msgspec writes [...] for any key of a dict; it stopped at the first whose value is not of the type. The path ends
    above an empty key.
    """
    path = ""
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.{3})\]", place):
        part, key = _part(kind, name, index), name
        if index == "...":
            items = value.items() if isinstance(value, dict) else ()
            key = next((each for each, item in items if not _is_of(item, part)), "")
            if not key:
                break
        value, kind = value[key or int(index)], part
        path += f".{shown_key(key)}" if key else f"[{index}]"
    return path.removeprefix("."), value, kind


def _part(kind: Any, name: str, index: str) -> Any:
    """The type of a field `name` of a record, or of the items of a container."""
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
    """The types of a union, without their limits."""
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
