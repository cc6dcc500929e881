"""Who is served before a request that comes now, where tenants take turns. Pure: owns no sequence.

It plays the fair queue (fair_queue.py) forward on counters that the engine reports: whoever is served is counted its
prompt and as many generated tokens as sequences have on average, at once and not as they come. So it is exact where
there is one place and all outputs are that long; else it is off by what runs at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from neuronserve.server.scheduler.fair_queue import MAX_REMEMBERED
from neuronserve.server.types import Request, ServedTokens

Order = tuple[int, float, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sequence that waits for a place."""

    request: Request
    num_tokens: int  # to compute before its next one


class Turns:
    """Tokens that each tenant was served, as an engine has reported them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._least = 0

    def record(self, served: ServedTokens | None) -> None:
        """Note what a step's report says."""
        if served is None:
            return
        self._counts |= served.counts
        self._least = served.least
        if len(self._counts) > 2 * MAX_REMEMBERED:  # who has less than the least is lifted to it, remembered or not
            self._counts = {tenant: count for tenant, count in self._counts.items() if count > self._least}

    def reset(self) -> None:
        """Begin anew, with an engine that has served nobody."""
        self._counts, self._least = {}, 0

    def before(
        self, newcomer: Request, waiting: Iterable[Waiting], to_come: Mapping[str, float], num_generated: float
    ) -> list[Waiting]:
        """Those of `waiting` that get their places before `newcomer`, in that order, if nobody else comes.

        `to_come` are the tokens that sequences which run will generate yet, by tenant; `num_generated` those of a
        sequence that waits.
        """
        own, queues = Waiting(newcomer, 0), dict[str, list[Waiting]]()
        ahead = [each for each in waiting if each.request.priority <= newcomer.priority]
        for each in sorted((*ahead, own), key=_order, reverse=True):
            queues.setdefault(each.request.tenant, []).append(each)  # the first is at the end
        counts = {tenant: max(self._counts.get(tenant, 0), self._least) + to_come.get(tenant, 0.0) for tenant in queues}
        turns = [_turn(queue[-1], counts) for queue in queues.values()]
        heapify(turns)
        served: list[Waiting] = []
        while True:
            tenant = turns[0][-1]
            first = queues[tenant].pop()
            if first is own:
                return served
            served.append(first)
            counts[tenant] += first.num_tokens + num_generated
            if queues[tenant]:
                heapreplace(turns, _turn(queues[tenant][-1], counts))
            else:
                heappop(turns)


def _order(each: Waiting) -> Order:
    """Of service, among those of one tenant."""
    return each.request.priority, each.request.arrival_time, each.request.request_id


def _turn(first: Waiting, counts: Mapping[str, float]) -> tuple[int, float, Order, str]:
    """The order of tenants, by the first that waits of each, and the tenant's name."""
    tenant = first.request.tenant
    return first.request.priority, counts[tenant], _order(first), tenant
