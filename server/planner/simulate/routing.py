"""Which engine of a simulated deployment gets the next request. Moves no time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, get_args

from server.config import CacheConfig
from server.scheduler.router import Router
from server.types import Request, TokenEvent

Routing = Literal["least-loaded", "round-robin", "prefix-aware"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)


class Balancer(Protocol):
    """What stands before the engines. Chooses once for each request, in order of arrival."""

    def choose(self, index: int, loads: Sequence[int]) -> int:
        """The number of the engine for request `index`; `loads` are the open requests of each."""
        ...

    def refused(self, index: int) -> None:
        """The engine chosen for request `index` did not take it."""
        ...


class LeastLoaded:
    """The fewest open requests; the first of equals."""

    def choose(self, index: int, loads: Sequence[int]) -> int:  # noqa: ARG002 - does not look at the request
        return loads.index(min(loads))

    def refused(self, index: int) -> None:
        """Nothing was noted."""


class RoundRobin:
    """One after another, whatever their loads: what nginx does by default."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, index: int, loads: Sequence[int]) -> int:  # noqa: ARG002 - does not look at the request
        chosen = self._next
        self._next = (chosen + 1) % len(loads)
        return chosen

    def refused(self, index: int) -> None:
        """A turn is a turn."""


class PrefixAware:
    """The server's own router: open tokens, and the prefixes that each was sent before."""

    def __init__(self, num_engines: int, cache: CacheConfig, request: Callable[[int], Request]) -> None:
        """`cache` is that of one engine; `request` makes the request of an index, under the id that engines use."""
        self._router = Router(num_engines, cache)
        self._request = request

    def choose(self, index: int, loads: Sequence[int]) -> int:  # noqa: ARG002 - counts tokens, not requests
        return self._router.place(self._request(index))

    def refused(self, index: int) -> None:
        self._router.end(self._request(index).request_id)

    def notify(self, event: TokenEvent) -> None:
        """Pass on what an engine made of a request."""
        self._router.notify(event)
