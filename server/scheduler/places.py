"""Places of a batch that tenants share: who has few of them, and which sequence gives up its own. Pure.

A tenant that floods the engine fills the batch and the queue. First sequences of another one then get places at once,
and their prompts up to MOST_IN_A_ROW steps for themselves: they wait for the step under way, and rarely for one more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from .fair_queue import FairQueue
from .queue import OrderedQueue
from .sequence import Sequence
from .step import StepDraft

MOST_IN_A_ROW = 8  # then other prompts have a step


class Places:
    """Places that tenants hold in a batch of `num_places`.

    An even share is the same for each tenant, and for two at least: another one was here and may come again.
    """

    def __init__(self, running: OrderedQueue, waiting: FairQueue, num_places: int) -> None:
        self._running, self._waiting, self._num_places = running, waiting, num_places
        self._held: Counter[str] = Counter()
        self._is_shared = False
        self._num_for_few = 0  # steps in a row whose prompts were all of tenants with few places

    def giver(self) -> Sequence | None:
        """Count the places before a step. Return the running sequence that gives its own to the first waiting one.

        It is the last one that decodes, of a tenant that keeps an even share. Only tenants with few places get one so.
        """
        self._is_shared = bool(self._waiting) and self._waiting.is_shared
        if not self._is_shared:
            return None
        self._held = Counter(seq.request.tenant for seq in self._running)
        most = max(self._held.values(), default=0)
        self._is_shared = 2 * most * max(2, len(self._held)) >= self._num_places
        first = self._waiting.first
        if len(self._running) < self._num_places or first.was_admitted or not self._has_few(first):
            return None
        return next((seq for seq in reversed([*self._running]) if self._may_give(seq, first)), None)

    def turns(self, step: StepDraft) -> Iterator[Callable[[Sequence], bool]]:
        """Yield the choice of sequences whose prompts `step` takes, and another one if it has taken none of these."""
        if self._is_shared and self._num_for_few < MOST_IN_A_ROW:
            yield self._has_few
            if step.prefill:
                self._num_for_few += 1
                return
        self._num_for_few = 0
        yield lambda _: True

    def _has_few(self, seq: Sequence) -> bool:
        """Return whether the tenant of `seq` holds less than half of an even share."""
        return 2 * self._held[seq.request.tenant] * self._num_tenants(seq) < self._num_places

    def _may_give(self, seq: Sequence, first: Sequence) -> bool:
        keeps_share = (self._held[seq.request.tenant] - 1) * self._num_tenants(first) >= self._num_places
        return keeps_share and seq.is_decode and not seq.is_in_flight and self._waiting.precedes(first, seq)

    def _num_tenants(self, seq: Sequence) -> int:
        return max(2, len(self._held) + (seq.request.tenant not in self._held))
