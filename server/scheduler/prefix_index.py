"""Estimate of the prompt blocks in an engine's prefix cache, from the prompts that it was sent. Pure bookkeeping.

The index is as large as the cache and forgets in the same order, but ignores generated tokens. A wrong estimate costs a
prefill, never a wrong token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """Index of at most `capacity` block digests; the least recently sent are forgotten first, a chain from its tail."""

    __slots__ = ("_capacity", "_digests")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def match(self, digests: Sequence[bytes]) -> int:
        """Count the leading `digests` that are known."""
        known = self._digests
        for count, digest in enumerate(digests):
            if digest not in known:
                return count
        return len(digests)

    def add(self, digests: Sequence[bytes]) -> list[bytes]:
        """Add a chain of blocks in order, cut to the capacity. Returns the digests that are forgotten for it."""
        known = self._digests
        for digest in reversed(digests[: self._capacity]):
            known[digest] = None
            known.move_to_end(digest)
        return [known.popitem(last=False)[0] for _ in range(len(known) - self._capacity)]

    def clear(self) -> None:
        """Forget all digests."""
        self._digests.clear()
