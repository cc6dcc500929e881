"""Prediction of the sequences that are served before a request that comes now, when tenants take turns. Pure.

It plays the fair queue (fair_queue.py) forward from the counters that the engine reports. A served sequence counts its
prompt and an average number of generated tokens at once, not as they come. So the prediction is exact for one slot and
outputs of that length; otherwise it is off by the sequences that run at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from ..types import Request, ServedTokens
from .fair_queue import MAX_REMEMBERED

Order = tuple[int, float, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sequence that waits for a slot."""

    request: Request
    num_tokens: int  # to compute before its next generated token


class Turns:
    """Counters of served tokens of each tenant, as an engine has reported them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._least = 0

    def record(self, served: ServedTokens | None) -> None:
        """Record the counters in a step's report."""
        if served is None:
            return
        self._counts |= served.counts
        self._least = served.least
        if len(self._counts) > 2 * MAX_REMEMBERED:  # counters below the least are lifted to it anyway
            self._counts = {tenant: count for tenant, count in self._counts.items() if count > self._least}

    def reset(self) -> None:
        """Reset all counters, for a new engine."""
        self._counts, self._least = {}, 0

    def before(
        self, newcomer: Request, waiting: Iterable[Waiting], to_come: Mapping[str, float], num_generated: float
    ) -> list[Waiting]:
        """Return the waiting sequences that get slots before `newcomer`, in order, if no other request comes.

        `to_come` are the tokens that running sequences will still generate, by tenant; `num_generated` is the expected
        output of a waiting sequence.
        """
        own, queues = Waiting(newcomer, 0), dict[str, list[Waiting]]()
        ahead = [each for each in waiting if each.request.priority <= newcomer.priority]
        for each in sorted((*ahead, own), key=_order, reverse=True):
            queues.setdefault(each.request.tenant, []).append(each)  # first in service at the end
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
    """Order of service within a tenant."""
    return each.request.priority, each.request.arrival_time, each.request.request_id


def _turn(first: Waiting, counts: Mapping[str, float]) -> tuple[int, float, Order, str]:
    """Sort key of a tenant, by its first waiting sequence; ends with the tenant's name."""
    tenant = first.request.tenant
    return first.request.priority, counts[tenant], _order(first), tenant
