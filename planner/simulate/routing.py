"""Which engine of a simulated deployment gets the next request. Moves no time. Engines come and go."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal, Protocol, get_args

from neuronserve.planner.simulate.scheduled_engine import ScheduledEngine
from neuronserve.server.config import CacheConfig
from neuronserve.server.scheduler.router import Router
from neuronserve.server.types import Request

Routing = Literal["least-loaded", "round-robin", "prefix-aware"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)


class Balancer(Protocol):
    """What stands before the engines. Chooses once for each request, in order of arrival, where any engine is open."""

    def open(self, number: int) -> None:
        """Engine `number`, which has no request, takes them from now on."""
        ...

    def close(self, number: int) -> None:
        """Engine `number` takes no more; what it has goes on."""
        ...

    def choose(self, index: int, now_ns: int) -> int:
        """The number of the open engine for request `index`."""
        ...

    def refused(self, index: int) -> None:
        """The engine chosen for request `index` did not take it."""
        ...

    def loaded(self, number: int, num_open: int) -> None:
        """Engine `number`, which may be closed, has so many open requests now."""
        ...


class LeastLoaded:
    """The fewest open requests; the first of equals."""

    def __init__(self) -> None:
        self._loads: dict[int, int] = {}  # of open engines
        self._heap: list[tuple[int, int]] = []  # (load, engine); stale once the load differs or the engine is closed

    def open(self, number: int) -> None:
        """Without a request, whatever its number was before."""
        self._loads[number] = 0
        heappush(self._heap, (0, number))

    def close(self, number: int) -> None:
        """Its entries are stale from now on."""
        del self._loads[number]

    def choose(self, index: int, now_ns: int) -> int:  # noqa: ARG002 - does not look at the request
        heap, loads = self._heap, self._loads
        while loads.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][1]

    def refused(self, index: int) -> None:
        """Nothing was noted."""

    def loaded(self, number: int, num_open: int) -> None:
        if number in self._loads:
            self._loads[number] = num_open
            heappush(self._heap, (num_open, number))
            if len(self._heap) > 64 + 8 * len(self._loads):
                self._heap[:] = [(load, each) for each, load in self._loads.items()]
                heapify(self._heap)


class RoundRobin:
    """One after another, whatever their loads: what nginx does by default."""

    def __init__(self) -> None:
        self._open: list[int] = []  # in order
        self._next = 0  # the least number that may come next

    def open(self, number: int) -> None:
        """In its place among the numbers."""
        insort(self._open, number)

    def close(self, number: int) -> None:
        """Its turn falls to the one after it."""
        self._open.remove(number)

    def choose(self, index: int, now_ns: int) -> int:  # noqa: ARG002 - does not look at the request
        place = bisect_left(self._open, self._next)
        chosen = self._open[place % len(self._open)]
        self._next = chosen + 1
        return chosen

    def refused(self, index: int) -> None:
        """A turn is a turn."""

    def loaded(self, number: int, num_open: int) -> None:
        """Loads do not matter."""


class PrefixAware:
    """The server's own router: open tokens, and the prefixes that each was sent before."""

    def __init__(
        self, cache: CacheConfig, request: Callable[[int], Request], engines: Sequence[ScheduledEngine]
    ) -> None:
        """`cache` is that of one engine; `request` makes the request of an index, under the id that engines use.

        `engines` may grow, and one may be another after it was closed.
        """
        self._router = RouterInVirtualTime(cache, engines)
        self._request, self._engines = request, engines

    def open(self, number: int) -> None:
        """With an empty cache."""
        self._router.join(number)
        self._engines[number].router = self._router

    def close(self, number: int) -> None:
        """Its requests count no more, as nothing is compared with them."""
        self._router.lose(number)

    def choose(self, index: int, now_ns: int) -> int:
        self._router.now_ns = now_ns
        return self._router.place(self._request(index))

    def refused(self, index: int) -> None:
        self._router.end(self._request(index).request_id)

    def loaded(self, number: int, num_open: int) -> None:
        """The router counts tokens, which it hears of from the engines."""


class RouterInVirtualTime(Router):
    """Knows of every token when it is made, though engines report runs of steps at their end."""

    def __init__(self, cache: CacheConfig, engines: Sequence[ScheduledEngine]) -> None:
        super().__init__(0, cache)
        self.now_ns = 0
        self._running = engines

    def num_open_tokens(self, index: int) -> int:
        return super().num_open_tokens(index) + self._running[index].num_tokens_unreported(self.now_ns)
