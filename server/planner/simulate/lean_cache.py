"""The KV block pool as counts, for prompts that share nothing: what BlockPool does, without blocks. Pure bookkeeping.

A block that was named can then be found again only by a preempted sequence that owned it, so the free list is: how many
unnamed blocks come first, and after them runs of named ones, oldest release first, each with its owner if it has one.
"""

from __future__ import annotations

from collections import deque


class Owner:
    """Whoever may come back for its blocks: `num_cached` of them are still in the free list."""

    __slots__ = ("num_cached",)

    def __init__(self) -> None:
        self.num_cached = 0


class LeanCache:
    """Counts of `num_blocks` blocks, of which the null block is nobody's."""

    def __init__(self, num_blocks: int) -> None:
        self.num_free = num_blocks - 1
        self._unnamed = num_blocks - 1
        self._named: deque[tuple[Owner | None, int]] = deque()  # the owner's count rules where there is an owner

    def take(self, count: int) -> None:
        """Hand out the first `count` free blocks; owners lose theirs, the end of their chain first."""
        assert count <= self.num_free
        self.num_free -= count
        if count <= self._unnamed:
            self._unnamed -= count
            return
        count -= self._unnamed
        self._unnamed = 0
        while count:
            owner, size = self._named[0]
            taken = min(count, size)
            count -= taken
            if owner is not None:
                owner.num_cached -= taken
            if taken == size:
                self._named.popleft()
            else:
                self._named[0] = (owner, size - taken)

    def release(self, named: int, unnamed: int, owner: Owner | None = None) -> None:
        """Free a chain of blocks; with an owner, `named` of them may be found again."""
        self.num_free += named + unnamed
        self._unnamed += unnamed
        if named == 0:
            return
        if owner is not None:
            owner.num_cached = named
        elif self._named and self._named[-1][0] is None:
            named += self._named.pop()[1]
        self._named.append((owner, named))

    def revive(self, owner: Owner) -> int:
        """Take back all that is left of the owner's chain; how many blocks that is."""
        count = owner.num_cached
        if count:
            self._named.remove((owner, count))
            self.num_free -= count
            owner.num_cached = 0
        return count
