"""Reading JSON that came with a checkpoint and is trusted in nothing: bounded, strict, typed.

Every complaint is a `CheckpointError` that names the file, the key, the value and the limit. Never writes.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from server.errors import CheckpointError
from server.typed_json import shown


def parse_object(text: str | bytes, file: str) -> dict[str, Any]:
    """The JSON object in `text`. Refuses duplicate keys, NaN and Infinity, and anything that is not an object."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise CheckpointError(file, f"key {shown(twice)} appears twice")
        return found

    def no_constant(name: str) -> NoReturn:
        raise CheckpointError(file, f"{name} is not JSON")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except RecursionError:
        raise CheckpointError(file, "JSON nested too deep") from None
    except ValueError as error:  # malformed, not UTF-8, or an integer of thousands of digits
        raise CheckpointError(file, f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(file, f"expected a JSON object, found {type(value).__name__}")
    return value


def read_object(path: Path, max_bytes: int) -> JsonObject:
    """Read a JSON object from a file of at most `max_bytes` bytes."""
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise CheckpointError(str(path), "no such file") from None
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror}") from None
    if len(text) > max_bytes:
        raise CheckpointError(str(path), f"larger than the {max_bytes} bytes allowed")
    return JsonObject(str(path), parse_object(text, str(path)))


class JsonObject:
    """A JSON object whose fields are read with their type and range checked; null counts as missing."""

    def __init__(self, file: str, values: dict[str, Any], prefix: str = "") -> None:
        self.file = file
        self.values = values
        self.prefix = prefix  # path of this object inside the file, such as "rope_scaling."

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def refuse(self, key: str, reason: str) -> NoReturn:
        raise CheckpointError(self.file, f"{self.prefix}{key} {reason}")

    def require(self, key: str) -> Any:
        if key not in self:
            self.refuse(key, "is missing")
        return self.values[key]

    def integer(self, key: str, default: int | None, low: int, high: int) -> int:
        """An integer in [low, high]; `default` None makes the key obligatory."""
        value = self.require(key) if default is None else self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(key, f"must be an integer, not {shown(value)}")
        if not low <= value <= high:
            self.refuse(key, f"must be between {low} and {high}, not {shown(value)}")
        return value

    def number(self, key: str, default: float | None, low: float, high: float) -> float:
        """A finite number in [low, high]; `default` None makes the key obligatory."""
        value = self.require(key) if default is None else self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(key, f"must be a number, not {shown(value)}")
        if not (low <= value <= high and math.isfinite(value)):
            self.refuse(key, f"must be between {low:g} and {high:g}, not {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, f"must be true or false, not {shown(value)}")
        return value

    def child(self, key: str) -> JsonObject | None:
        """The object under `key`; None when it is missing, null or empty."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            self.refuse(key, f"must be an object, not {shown(value)}")
        return JsonObject(self.file, value, f"{self.prefix}{key}.") if value else None
