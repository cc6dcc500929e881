"""Which engine of a simulated deployment gets the next request. Knows loads and what lies in caches; moves no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from server.kv_cache.manager import SequenceBlocks

Routing = Literal["least-loaded", "round-robin", "prefix-aware"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)

# An engine that has a prefix may have so many times the open requests of the least loaded, and so many more, before
# the prefix is not worth the wait: computing it again costs one prefill, a queue costs many.
LOAD_MARGIN = 1.25
MORE_OPEN = 2


@dataclass(frozen=True, slots=True)
class NamedPrompt:
    """A prompt and the names of its blocks."""

    token_ids: tuple[int, ...]
    blocks: SequenceBlocks


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


class PrefixCache(Protocol):
    """An engine of which can be asked what it has. A prompt is named once, for all of them."""

    def open_prompt(self, index: int) -> NamedPrompt:
        """The prompt of request `index`."""
        ...

    def num_cached_tokens(self, prompt: NamedPrompt) -> int:
        """Leading tokens of it that are in the prefix cache now; changes nothing."""
        ...


class PrefixAware:
    """The longest cached prefix among the engines that are not overloaded; of equals the least loaded."""

    def __init__(self, engines: Sequence[PrefixCache]) -> None:
        self._engines = engines

    def choose(self, index: int, loads: Sequence[int]) -> int:
        most = LOAD_MARGIN * min(loads) + MORE_OPEN
        welcome = [number for number, load in enumerate(loads) if load <= most]
        prompt = self._engines[0].open_prompt(index)
        return min(welcome, key=lambda number: (-self._engines[number].num_cached_tokens(prompt), loads[number]))
