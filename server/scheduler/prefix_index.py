"""Which prompt blocks an engine is believed to have in its prefix cache, by what it was sent. Pure bookkeeping.

A belief, not the engine's own account: as large as its cache and forgotten in the same order, but it knows nothing of
generated tokens. What is believed wrongly costs a prefill, never a wrong token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """At most `capacity` block digests, least recently sent forgotten first, a chain from its tail."""

    __slots__ = ("_capacity", "_digests")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def match(self, digests: Sequence[bytes]) -> int:
        """How many of the leading `digests` are known."""
        known = self._digests
        for count, digest in enumerate(digests):
            if digest not in known:
                return count
        return len(digests)

    def add(self, digests: Sequence[bytes]) -> list[bytes]:
        """Know these blocks, a chain in order, from now on; of a chain beyond the capacity only its beginning.

        Returns what is forgotten for it.
        """
        known = self._digests
        for digest in reversed(digests[: self._capacity]):
            known[digest] = None
            known.move_to_end(digest)
        return [known.popitem(last=False)[0] for _ in range(len(known) - self._capacity)]

    def clear(self) -> None:
        """Know nothing."""
        self._digests.clear()
