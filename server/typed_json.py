"""JSON that others wrote, as typed records (msgspec): a refusal names the key, its value and what it must be."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

MAX_SHOWN = 80  # characters of an offending value that a message repeats

T = TypeVar("T")


class JsonError(ValueError):
    """The text is no JSON, or not of the record's form. `str()` is fit to be shown to a user."""


def decode(text: str | bytes, record: type[T]) -> T:
    """The JSON `text` as a `record`, a type that msgspec knows: unknown keys are passed over, types are strict."""
    try:
        return msgspec.json.decode(text, type=record)
    except msgspec.ValidationError as error:
        raise JsonError(_complaint(error, text)) from None
    except (ValueError, RecursionError) as error:  # malformed, not UTF-8, or nested too deep
        raise JsonError(f"is not JSON: {error}") from None


def convert(value: Any, record: type[T]) -> T:
    """`decode` of a part of what has been decoded without a type."""
    return decode(msgspec.json.encode(value), record)


def _complaint(error: msgspec.ValidationError, text: str | bytes) -> str:
    """ "top_p is 2.0: expected `float` <= 1.0" of msgspec's "Expected `float` <= 1.0 - at `$.top_p`"."""
    expected, _, place = str(error).partition(" - at `$")
    expected, place = expected[0].lower() + expected[1:], place.removesuffix("`").removeprefix(".")
    try:
        value = _value_at(msgspec.json.decode(text), place)
    except (LookupError, TypeError, ValueError):
        return f"{place}: {expected}" if place else expected
    shown = repr(value)
    shown = shown if len(shown) <= MAX_SHOWN else shown[:MAX_SHOWN] + "..."
    return f"{place} is {shown}: {expected}"


def _value_at(value: Any, place: str) -> Any:
    """What lies at a path such as `a.b[0]`. Raises LookupError when it is not a single value that the path says."""
    if not place or "[...]" in place:
        raise LookupError(place)
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", place):
        value = value[int(index)] if index else value[key]
    if isinstance(value, dict | list):
        raise LookupError(place)
    return value
