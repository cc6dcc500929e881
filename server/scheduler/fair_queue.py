"""The waiting sequences, in groups that take turns. Pure.

A scheduling policy (service.py) says which group a sequence belongs to: under `fair` its tenant, under `slo` whether it
can still meet its objective, otherwise there is one group, which alone waits in order of service.

Within a priority the group that was served least comes next, with its first sequence in order of service. This is the
virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). A group's counter grows
by the tokens computed for it, over its weight: prompt tokens at admission, generated tokens as they come. A group that
begins to wait is lifted to the least counter of the waiting groups, or of the group that waited last; under `fair` less
SAVED_TOKENS, so that a tenant saves up enough turns while away for a few requests that come together, and no more.
Counters of two groups that always wait differ at most by the running sequences and one prompt.

A request with a promised limit (`Request.due_time`) comes before all others, of any priority, once most of its limit
has passed: a flood of more urgent requests delays it for a while, not for as long as the flood lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ..types import ServedTokens
from .queue import OrderedQueue
from .sequence import Sequence
from .service import SERVICE_POLICIES, Order, ServicePolicy

SAVED_TOKENS = 2048  # by which the counter of a tenant that begins to wait may be behind others
MAX_REMEMBERED = 4096  # counters of groups, waiting or not


class FairQueue:
    """Waiting sequences by group."""

    def __init__(self, policy: ServicePolicy = SERVICE_POLICIES["fair"]) -> None:
        self._policy, self._saved = policy, SAVED_TOKENS if policy.by_tenant else 0
        self._queues: dict[str, OrderedQueue] = {}  # by waiting group
        self._served: dict[str, float] = {}  # tokens over weight, by group
        self._last = ""  # the last group that stopped waiting
        self._changed: set[str] = set()  # groups with counters that are not reported yet
        self._promised = OrderedQueue(key=_due)  # waiting sequences with a due time and no token
        self._now = -inf

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    @property
    def is_shared(self) -> bool:
        """True while the counters of several tenants are known."""
        return self._policy.by_tenant and len(self._served) > 1

    @property
    def takes_turns(self) -> bool:
        """True when computed tokens, or the time, may change which sequence is first."""
        return len(self._queues) > 1 or len(self._promised) > 0 or (self._policy.by_deadline and len(self) > 0)

    def at(self, now: float) -> None:
        """Set the time, by which promised sequences become due, and others miss their objectives."""
        self._now = now
        queue = self._queues.get("") if self._policy.by_deadline else None
        while queue and (seq := queue.first).order[1] <= now and not seq.was_admitted:
            self.remove(seq)
            self.add(seq)

    @property
    def first(self) -> Sequence:
        if self._promised and self._promised.first.request.due_time <= self._now:
            return self._promised.first
        firsts = [queue.first for queue in self._queues.values()]
        return firsts[0] if len(firsts) == 1 else min(firsts, key=self._order)

    def add(self, seq: Sequence) -> None:
        """Add a new or preempted sequence. Preempted ones continue, whether late or not."""
        group = seq.group = self._policy.group(seq.request, seq.order, -inf if seq.was_admitted else self._now)
        seq.weight = self._policy.weight(seq.request, group)
        if group not in self._queues:
            self._served[group] = max(self._served.pop(group, 0.0), self._least)
            self._queues[group] = OrderedQueue()
            self._forget()
        self._queues[group].add(seq)
        if self._is_promised(seq):
            self._promised.add(seq)

    def remove(self, seq: Sequence) -> None:
        group = seq.group
        self._queues[group].remove(seq)
        if self._is_promised(seq):
            self._promised.remove(seq)
        if not self._queues[group]:
            del self._queues[group]
            self._last = group

    def serve(self, seq: Sequence, num_tokens: int) -> None:
        """Count tokens computed for a sequence."""
        group = seq.group
        if group in self._served:  # otherwise it was forgotten while its sequence ran
            self._served[group] += num_tokens / seq.weight
            self._changed.add(group)

    def precedes(self, seq: Sequence, other: Sequence) -> bool:
        """Return whether waiting `seq` would still come before `other`, which runs, if that waited too."""
        count = max(self._served.get(other.group, 0.0), self._least)
        return (seq.order[0], self._served[seq.group]) < (other.order[0], count)

    def take_served(self) -> ServedTokens | None:
        """Return the counters that have grown since the last call; None while there has been one group."""
        if len(self._served) <= 1:
            return None
        counts = {group: self._served[group] for group in self._changed if group in self._served}
        self._changed.clear()
        return ServedTokens(counts, self._least)

    @property
    def _least(self) -> float:
        """The counter that a group gets at least when it begins to wait."""
        level = self._served.get(self._last, 0.0)
        return min((self._served[group] for group in self._queues), default=level) - self._saved

    def _order(self, seq: Sequence) -> tuple[int, float, Order]:
        return seq.order[0], self._served[seq.group], seq.order

    def _forget(self) -> None:
        """Drop an idle counter above MAX_REMEMBERED, the one whose group began to wait longest ago."""
        if len(self._served) > MAX_REMEMBERED:
            idle = next((group for group in self._served if group not in self._queues), None)
            if idle is not None:
                del self._served[idle]

    def _is_promised(self, seq: Sequence) -> bool:
        """Return whether a sequence has a due time and no token; constant while it waits."""
        return seq.request.due_time < inf and not seq.num_generated and not self._policy.by_deadline


def _due(seq: Sequence) -> tuple[float, Order]:
    return seq.request.due_time, seq.order
