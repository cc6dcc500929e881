"""Checks of the keys of a catalogue file. A check takes a value and its place in the file, and returns it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from difflib import get_close_matches
from math import isfinite
from typing import Any

from neuronserve.server.device.chips import Link
from neuronserve.server.device.instances import UltraServer
from neuronserve.server.errors import SettingsError

Check = Callable[[str, Any], Any]


class Keys:
    """The keys of one kind of table. Every table must have `source` and `date`."""

    def __init__(self, **checks: Check) -> None:
        self._checks = checks

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._checks)

    def read(self, where: str, table: Any) -> dict[str, Any]:
        """Return the table's checked values. Raises SettingsError, naming the key, the value and the limit."""
        if not isinstance(table, dict):
            raise SettingsError(f"{where}: must be a table, not {table!r}")
        for key in table:
            if key not in self._checks:
                near = get_close_matches(key, self._checks, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise SettingsError(f"{where}.{key}: there is no such key{hint} Known: {', '.join(self._checks)}")
        for key, why in (("source", "where the figures are from"), ("date", "when the source said so")):
            if key not in table:
                raise SettingsError(f"{where}.{key} is missing: {why}")
        return {key: self._checks[key](f"{where}.{key}", value) for key, value in table.items()}


def _refusal(where: str, value: Any, must: str) -> SettingsError:
    shown = value if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)
    return SettingsError(f"{where} is {str(shown)[:80]}: it must be {must}")


def text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refusal(where, value, "a text that is not empty")
    return value


def whole(where: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _refusal(where, value, "a whole number of at least 1")
    return value


def number(where: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not (isfinite(value) and value > 0):
        raise _refusal(where, value, "a finite number above 0")
    return float(value)


def share(where: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise _refusal(where, value, "at least 0 and below 1")
    return float(value)


def texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise _refusal(where, value, "a list of texts")
    return tuple(text(f"{where}[{i}]", item) for i, item in enumerate(value))


def numbers(where: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise _refusal(where, value, "a list of whole numbers")
    return tuple(sorted({whole(f"{where}[{i}]", item) for i, item in enumerate(value)}))


def rates(where: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _refusal(where, value, "a table of numbers by element type")
    return {name: number(f"{where}.{name}", item) for name, item in value.items()}


def link(where: str, value: Any) -> Link:
    if not isinstance(value, dict) or value.keys() != {"generation", "gib_s_per_chip"}:
        raise _refusal(where, value, "a table with generation and gib_s_per_chip")
    generation = text(f"{where}.generation", value["generation"])
    return Link(generation, number(f"{where}.gib_s_per_chip", value["gib_s_per_chip"]))


def ultraserver(where: str, value: Any) -> UltraServer:
    if not isinstance(value, dict) or value.keys() != {"name", "sizes", "link"}:
        raise _refusal(where, value, "a table with name, sizes and link")
    sizes = numbers(f"{where}.sizes", value["sizes"])
    return UltraServer(text(f"{where}.name", value["name"]), sizes, link(f"{where}.link", value["link"]))


def date(where: str, value: Any) -> str:
    """Return a date in ISO 8601 that is given as TOML's own date or as text."""
    try:
        return value.isoformat() if type(value) is datetime.date else datetime.date.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise _refusal(where, value, "a date such as 2026-08-21") from None


def one_of(*names: str) -> Check:
    def check(where: str, value: Any) -> str:
        if value not in names:
            raise _refusal(where, value, f"one of {', '.join(names)}")
        return str(value)

    return check


ORIGIN: dict[str, Check] = {"source": text, "date": date}
