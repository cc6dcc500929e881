"""A list that is always in order. Owns no sequence; the running and the waiting are two of these."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from server.scheduler.sequence import Sequence

_order = attrgetter("order")


class OrderedQueue:
    """Sequences in order of service, which is total and never changes.

    Adding and removing are a binary search and a memory move, which for the few thousand entries a bounded queue
    holds is cheaper than a heap, and leaves nothing behind when a request is aborted.
    """

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    @property
    def first(self) -> Sequence:
        return self._items[0]

    @property
    def last(self) -> Sequence:
        return self._items[-1]

    def add(self, seq: Sequence) -> None:
        insort(self._items, seq, key=_order)

    def remove(self, seq: Sequence) -> None:
        index = bisect_left(self._items, seq.order, key=_order)
        assert self._items[index] is seq
        del self._items[index]
