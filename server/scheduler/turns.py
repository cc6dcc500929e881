"""Prediction of the sequences that are served before a request that comes now. Pure.

It plays the fair queue (fair_queue.py) forward from the counters that the engine reports. A served sequence counts its
prompt and an average number of generated tokens at once, not as they come. So the prediction is exact for one slot and
outputs of that length; otherwise it is off by the sequences that run at a time, and by what the second tenant of an
engine has saved, as counters are reported from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from ..types import Request, ServedTokens
from .fair_queue import MAX_REMEMBERED
from .service import SERVICE_POLICIES, Order, ServicePolicy


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sequence that waits for a slot."""

    request: Request
    num_tokens: int  # to compute before its next generated token


class Turns:
    """Counters of served tokens of each group, as an engine has reported them."""

    def __init__(self, policy: ServicePolicy = SERVICE_POLICIES["fair"]) -> None:
        self._policy = policy
        self._counts: dict[str, float] = {}
        self._least = 0.0

    def record(self, served: ServedTokens | None) -> None:
        """Record the counters in a step's report."""
        if served is None:
            return
        self._counts |= served.counts
        self._least = served.least
        if len(self._counts) > 2 * MAX_REMEMBERED:  # counters below the least are lifted to it anyway
            self._counts = {group: count for group, count in self._counts.items() if count > self._least}

    def reset(self) -> None:
        """Reset all counters, for a new engine."""
        self._counts, self._least = {}, 0.0

    def before(
        self,
        newcomer: Request,
        waiting: Iterable[Waiting],
        to_come: Mapping[str, float],
        num_generated: float,
        prompt_token_s: float = 0.0,
    ) -> list[Waiting]:
        """Return the waiting sequences that get slots before `newcomer`, in order, if no other request comes.

        `to_come` are the tokens that running sequences will still generate, by tenant; `num_generated` is the expected
        output of a waiting sequence.
        """
        policy, now = self._policy, newcomer.arrival_time
        own, queues = Waiting(newcomer, 0), dict[str, list[tuple[Order, Waiting]]]()
        placed = sorted(((policy.order(each.request, prompt_token_s), each) for each in (*waiting, own)), key=_order)
        for order, each in reversed(placed):  # the first in service at the end
            if order[0] <= newcomer.priority or not policy.heeds_priority:
                queues.setdefault(policy.group(each.request, order, now), []).append((order, each))
        counts = {group: max(self._counts.get(group, 0.0), self._least) for group in queues}
        if policy.by_tenant:
            weights = {group: queue[-1][1].request.weight for group, queue in queues.items()}
            counts = {group: count + to_come.get(group, 0.0) / weights[group] for group, count in counts.items()}
        turns = [_turn(group, queue, counts) for group, queue in queues.items()]
        heapify(turns)
        served: list[Waiting] = []
        while True:
            group = turns[0][-1]
            _, first = queues[group].pop()
            if first is own:
                return served
            served.append(first)
            counts[group] += (first.num_tokens + num_generated) / policy.weight(first.request, group)
            if queues[group]:
                heapreplace(turns, _turn(group, queues[group], counts))
            else:
                heappop(turns)


def _order(placed: tuple[Order, Waiting]) -> Order:
    return placed[0]


def _turn(group: str, queue: list[tuple[Order, Waiting]], counts: Mapping[str, float]) -> tuple[int, float, Order, str]:
    """Sort key of a group, by its first waiting sequence; ends with the group's name."""
    order, _ = queue[-1]
    return order[0], counts[group], order, group
