"""A sorted list of sequences, used for the running and the waiting ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from .sequence import Sequence

_order = attrgetter("order")


class OrderedQueue:
    """Sequences in order of service or of another key, which must be total and never change.

    Adding and removing are a binary search and a memory move. For the few thousand entries of a bounded queue that is
    cheaper than a heap, and an aborted request leaves nothing behind.
    """

    def __init__(self, key: Callable[[Sequence], Any] = _order) -> None:
        self._key = key
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
        insort(self._items, seq, key=self._key)

    def remove(self, seq: Sequence) -> None:
        index = bisect_left(self._items, self._key(seq), key=self._key)
        assert self._items[index] is seq
        del self._items[index]
