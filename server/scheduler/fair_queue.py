"""The waiting sequences, in an order that is fair to their tenants. Pure.

Within a priority the tenant that was served least comes next, with its first sequence in order of service. This is the
virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). A tenant's counter grows
by the tokens computed for it: prompt tokens at admission, generated tokens as they come. A tenant that begins to wait
is lifted to the least counter of the waiting tenants, or of the tenant that waited last, so that none saves up turns
while away. Counters of two tenants that always wait differ at most by the running sequences and one prompt. Sequences
without a tenant count as one tenant, which alone waits in order of service.

A request with a promised limit (`Request.due_time`) comes before all others, of any priority, once most of its limit
has passed: a flood of more urgent requests delays it for a while, not for as long as the flood lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ..types import ServedTokens
from .queue import OrderedQueue
from .sequence import Sequence

MAX_REMEMBERED = 4096  # counters of tenants, waiting or not


class FairQueue:
    """Waiting sequences by tenant."""

    def __init__(self) -> None:
        self._queues: dict[str, OrderedQueue] = {}  # by waiting tenant
        self._served: dict[str, int] = {}  # tokens, by tenant
        self._last = ""  # the last tenant that stopped waiting
        self._changed: set[str] = set()  # tenants with counters that are not reported yet
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
    def takes_turns(self) -> bool:
        """True when computed tokens, or the time, may change which sequence is first."""
        return len(self._queues) > 1 or len(self._promised) > 0

    def at(self, now: float) -> None:
        """Set the time, by which promised sequences become due."""
        self._now = now

    @property
    def first(self) -> Sequence:
        if self._promised and self._promised.first.request.due_time <= self._now:
            return self._promised.first
        firsts = [queue.first for queue in self._queues.values()]
        return firsts[0] if len(firsts) == 1 else min(firsts, key=self._order)

    def add(self, seq: Sequence) -> None:
        """Add a new or preempted sequence."""
        tenant = seq.request.tenant
        if tenant not in self._queues:
            self._served[tenant] = max(self._served.pop(tenant, 0), self._least)
            self._queues[tenant] = OrderedQueue()
            self._forget()
        self._queues[tenant].add(seq)
        if _is_promised(seq):
            self._promised.add(seq)

    def remove(self, seq: Sequence) -> None:
        tenant = seq.request.tenant
        self._queues[tenant].remove(seq)
        if _is_promised(seq):
            self._promised.remove(seq)
        if not self._queues[tenant]:
            del self._queues[tenant]
            self._last = tenant

    def serve(self, seq: Sequence, num_tokens: int) -> None:
        """Count tokens computed for a sequence."""
        tenant = seq.request.tenant
        if tenant in self._served:  # otherwise it was forgotten while its sequence ran
            self._served[tenant] += num_tokens
            self._changed.add(tenant)

    def take_served(self) -> ServedTokens | None:
        """Return the counters that have grown since the last call; None while there has been one tenant."""
        if len(self._served) <= 1:
            return None
        counts = {tenant: self._served[tenant] for tenant in self._changed if tenant in self._served}
        self._changed.clear()
        return ServedTokens(counts, self._least)

    @property
    def _least(self) -> int:
        """The counter that a tenant gets at least when it begins to wait."""
        level = self._served.get(self._last, 0)
        return min((self._served[tenant] for tenant in self._queues), default=level)

    def _order(self, seq: Sequence) -> tuple[int, int, tuple[int, float, str]]:
        return seq.request.priority, self._served[seq.request.tenant], seq.order

    def _forget(self) -> None:
        """Drop an idle counter above MAX_REMEMBERED, the one whose tenant began to wait longest ago."""
        if len(self._served) > MAX_REMEMBERED:
            idle = next((tenant for tenant in self._served if tenant not in self._queues), None)
            if idle is not None:
                del self._served[idle]


def _due(seq: Sequence) -> tuple[float, tuple[int, float, str]]:
    return seq.request.due_time, seq.order


def _is_promised(seq: Sequence) -> bool:
    """Return whether a sequence has a due time and no token; constant while it waits."""
    return seq.request.due_time < inf and not seq.num_generated
