"""The sequences that wait, in an order that is fair to those who send them. Owns no sequence; pure.

Within a priority the tenant comes next who was served least, and of a tenant's sequences the first in order of service.
That is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a tenant's
counter grows by the tokens that are computed for it, prompts' when they are admitted and generated ones as they come,
and whoever begins to wait is lifted to the least of those that wait, or to who waited last, so that nobody saves up
turns while away. Between two tenants that always wait, counters differ by no more than what is running and one prompt.
Sequences without a tenant are one tenant; alone it waits in order of service, whatever is counted.

Whoever was promised a limit (`Request.due_time`) and has waited for most of it comes before all others, whatever their
priorities: so a flood of more urgent requests passes it for a while and not for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from neuronserve.server.scheduler.queue import OrderedQueue
from neuronserve.server.scheduler.sequence import Sequence
from neuronserve.server.types import ServedTokens

MAX_REMEMBERED = 4096  # counters, of those that do not wait too


class FairQueue:
    """Waiting sequences by tenant."""

    def __init__(self) -> None:
        self._queues: dict[str, OrderedQueue] = {}  # of tenants that wait
        self._served: dict[str, int] = {}  # tokens, by tenant
        self._last = ""  # tenant that ceased to wait last
        self._changed: set[str] = set()  # whose counters have not been reported
        self._promised = OrderedQueue(key=_due)  # of those that wait, who has no token and is due at some time
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
        """Whether what is computed, or the time, may change who is first."""
        return len(self._queues) > 1 or len(self._promised) > 0

    def at(self, now: float) -> None:
        """Tell it the time, by which some are due."""
        self._now = now

    @property
    def first(self) -> Sequence:
        if self._promised and self._promised.first.request.due_time <= self._now:
            return self._promised.first
        firsts = [queue.first for queue in self._queues.values()]
        return firsts[0] if len(firsts) == 1 else min(firsts, key=self._order)

    def add(self, seq: Sequence) -> None:
        """Let a sequence wait: one that is new, or has lost its place."""
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
        """Count tokens that are computed for a sequence."""
        tenant = seq.request.tenant
        if tenant in self._served:  # else it was forgotten while it ran
            self._served[tenant] += num_tokens
            self._changed.add(tenant)

    def take_served(self) -> ServedTokens | None:
        """Counters that have grown since this was asked last; None as long as there has been one tenant."""
        if len(self._served) <= 1:
            return None
        counts = {tenant: self._served[tenant] for tenant in self._changed if tenant in self._served}
        self._changed.clear()
        return ServedTokens(counts, self._least)

    @property
    def _least(self) -> int:
        """What a tenant who begins to wait is lifted to."""
        level = self._served.get(self._last, 0)
        return min((self._served[tenant] for tenant in self._queues), default=level)

    def _order(self, seq: Sequence) -> tuple[int, int, tuple[int, float, str]]:
        return seq.request.priority, self._served[seq.request.tenant], seq.order

    def _forget(self) -> None:
        """Keep so many counters; those that began to wait longest ago go first."""
        if len(self._served) > MAX_REMEMBERED:
            idle = next((tenant for tenant in self._served if tenant not in self._queues), None)
            if idle is not None:
                del self._served[idle]


def _due(seq: Sequence) -> tuple[float, tuple[int, float, str]]:
    return seq.request.due_time, seq.order


def _is_promised(seq: Sequence) -> bool:
    """While it waits this does not change."""
    return seq.request.due_time < inf and not seq.num_generated
