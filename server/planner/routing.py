"""Which engine of a simulated deployment gets the next request. Knows loads and what lies in caches; moves no time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Router(Protocol):
    """Chooses once for each request, in order of arrival."""

    def choose(self, index: int, loads: Sequence[int]) -> int:
        """The number of the engine for request `index`; `loads` are the open requests of each."""
        ...


class LeastLoaded:
    """The fewest open requests; the first of equals."""

    def choose(self, index: int, loads: Sequence[int]) -> int:  # noqa: ARG002 - does not look at the request
        return loads.index(min(loads))


class RoundRobin:
    """One after another, whatever their loads: what nginx does unless told otherwise."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, index: int, loads: Sequence[int]) -> int:  # noqa: ARG002 - does not look at the request
        chosen = self._next
        self._next = (chosen + 1) % len(loads)
        return chosen
