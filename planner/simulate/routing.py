"""Choice of the engine for the next request of a simulated deployment, whose engines come and go."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal, Protocol, get_args

from ...server.config import CacheConfig
from ...server.scheduler.router import Router
from ...server.types import Request
from .scheduled_engine import ScheduledEngine

Routing = Literal["least-loaded", "round-robin", "prefix-aware"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)


class Balancer(Protocol):
    """Router in front of the engines. It chooses once for each request, in order of arrival, if an engine is open."""

    def open(self, number: int) -> None:
        """Let engine `number`, which has no request, take requests from now on."""
        ...

    def close(self, number: int) -> None:
        """Let engine `number` take no more requests; its own go on."""
        ...

    def choose(self, index: int, now_ns: int) -> int:
        """Return the number of an open engine for request `index`."""
        ...

    def refused(self, index: int) -> None:
        """Note that the chosen engine refused request `index`."""
        ...

    def loaded(self, number: int, num_open: int) -> None:
        """Note the number of open requests of engine `number`, which may be closed."""
        ...


class LeastLoaded:
    """Choose the engine with the fewest open requests; the first of equals."""

    def __init__(self) -> None:
        self._loads: dict[int, int] = {}  # of open engines
        self._heap: list[tuple[int, int]] = []  # (load, engine); stale if the load differs or the engine is closed

    def open(self, number: int) -> None:
        """Start the engine at load 0."""
        self._loads[number] = 0
        heappush(self._heap, (0, number))

    def close(self, number: int) -> None:
        """Forget the engine; its entries in the heap become stale."""
        del self._loads[number]

    def choose(self, index: int, now_ns: int) -> int:  # noqa: ARG002 - does not look at the request
        heap, loads = self._heap, self._loads
        while loads.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][1]

    def refused(self, index: int) -> None:
        """Do nothing: the load was not counted yet."""

    def loaded(self, number: int, num_open: int) -> None:
        if number in self._loads:
            self._loads[number] = num_open
            heappush(self._heap, (num_open, number))
            if len(self._heap) > 64 + 8 * len(self._loads):
                self._heap[:] = [(load, each) for each, load in self._loads.items()]
                heapify(self._heap)


class RoundRobin:
    """Choose engines in turn, whatever their loads, as nginx does by default."""

    def __init__(self) -> None:
        self._open: list[int] = []  # in order
        self._next = 0  # the least number that may come next

    def open(self, number: int) -> None:
        """Insert the engine in the order of numbers."""
        insort(self._open, number)

    def close(self, number: int) -> None:
        """Remove the engine; its turn falls to the next one."""
        self._open.remove(number)

    def choose(self, index: int, now_ns: int) -> int:  # noqa: ARG002 - does not look at the request
        place = bisect_left(self._open, self._next)
        chosen = self._open[place % len(self._open)]
        self._next = chosen + 1
        return chosen

    def refused(self, index: int) -> None:
        """Do nothing: the turn is used."""

    def loaded(self, number: int, num_open: int) -> None:
        """Do nothing: loads do not matter."""


class PrefixAware:
    """Choose by the server's own router: open tokens, and the prefixes that each engine received before."""

    def __init__(
        self, cache: CacheConfig, request: Callable[[int], Request], engines: Sequence[ScheduledEngine]
    ) -> None:
        """Take the cache of one engine, and `request`, which makes the request of an index under the engines' id.

        `engines` may grow, and an engine may be replaced after it was closed.
        """
        self._router = RouterInVirtualTime(cache, engines)
        self._request, self._engines = request, engines

    def open(self, number: int) -> None:
        """Add the engine with an empty cache."""
        self._router.join(number)
        self._engines[number].router = self._router

    def close(self, number: int) -> None:
        """Remove the engine; its requests count no more."""
        self._router.lose(number)

    def choose(self, index: int, now_ns: int) -> int:
        self._router.now_ns = now_ns
        return self._router.place(self._request(index))

    def refused(self, index: int) -> None:
        self._router.end(self._request(index).request_id)

    def loaded(self, number: int, num_open: int) -> None:
        """Do nothing: the router counts tokens, which engines report to it."""


class RouterInVirtualTime(Router):
    """Router that counts every token when it is made, although engines report runs of steps at their end."""

    def __init__(self, cache: CacheConfig, engines: Sequence[ScheduledEngine]) -> None:
        super().__init__(0, cache)
        self.now_ns = 0
        self._running = engines

    def num_open_tokens(self, index: int) -> int:
        return super().num_open_tokens(index) + self._running[index].num_tokens_unreported(self.now_ns)
