"""The pool of KV blocks: the free list, how many tables hold each block, and the prefix cached in it.

Block 0 is the null block that padding points at: it is never handed out, and its entry in the free list is the list's
end on both sides. There are no tokens, sequences or times here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from .hashing import Blob
from .tiers import Tiers

NULL_BLOCK = 0
FIRST_SHARE = 8  # one block in so many is for prefixes at first
GROWTH = 8  # further blocks for prefixes, for each that was evicted and computed again


class Observer(Protocol):
    """Follows which blocks are cached."""

    def stored(self, blob: Blob) -> None:
        """Note that a block has become cached."""

    def removed(self, name: bytes, is_whole: bool) -> None:
        """Note that a block is not cached any more."""

    def cleared(self) -> None:
        """Note that no block is cached."""


class BlockPool:
    """Blocks 0 .. num_blocks - 1 with reference counts, and a free list in order of eviction.

    The free list is doubly linked through arrays, so a block that a prefix hit revives leaves its middle in O(1).
    Free blocks without a digest come first: used ones, the last freed first, then unused ones by address, whose memory
    the host has not given yet. Those with a digest follow, the least recently freed first.

    When about `num_kept` free blocks hold prefixes, the oldest of them is evicted before an unused block is taken. If
    that prefix is computed again, `num_kept` grows: so prefixes take memory only where they are asked for again.
    """

    def __init__(self, num_blocks: int, tiers: Tiers | None = None, grows: bool = False) -> None:
        """Make a pool. Blocks that become both held and cached are offered to `tiers`, as are those it evicts.

        One that `grows` starts with few blocks for prefixes; else they keep all.
        """
        if num_blocks < 2:
            raise ValueError(f"a KV cache needs the null block and at least one more, not {num_blocks} blocks")
        self.num_blocks, self.tiers = num_blocks, tiers
        self.observers: tuple[Observer, ...] = ()
        self.num_free = num_blocks - 1
        self.ref_counts = [0] * num_blocks
        self.digests: list[bytes | None] = [None] * num_blocks
        self.cached: dict[bytes, int] = {}  # by digest: its block
        self._texts = [b""] * num_blocks  # of each cached block: its token ids
        self.parts: set[int] = set()  # cached blocks that are not whole, which tiers do not copy
        self.num_gains = 0  # releases and namings; while it does not change, a refused allocation stays refused
        self.num_kept = num_blocks // FIRST_SHARE if grows else num_blocks
        self.num_used = 0  # blocks that were taken at least once: 1 .. num_used
        self._missed: dict[bytes, None] = {}  # digests evicted while there were unused blocks, oldest first
        self._next: list[int] = [*range(1, num_blocks), NULL_BLOCK]
        self._prev: list[int] = [num_blocks - 1, *range(num_blocks - 1)]

    def free_blocks(self) -> Iterator[int]:
        """Yield the free blocks in the order of the list, in which they are handed out unless the pool `grows`."""
        block = self._next[NULL_BLOCK]
        while block != NULL_BLOCK:
            yield block
            block = self._next[block]

    def take(self) -> int:
        """Allocate a free block with one holder; evict the prefix cached in it."""
        block = self._next[NULL_BLOCK]
        assert block != NULL_BLOCK, "no free block: the caller must look at num_free first"
        if block == self.num_used + 1:
            block = self._instead_of_unused(block)
        self._unlink(block)
        self.evict(block)
        self.ref_counts[block] = 1
        return block

    def _instead_of_unused(self, unused: int) -> int:
        """Return the used block that is taken before an `unused` one; that one if prefixes may keep all others."""
        oldest = self._next[self.num_blocks - 1]  # the unused blocks are in a row, up to the last one
        num_held = self.num_blocks - 1 - self.num_free  # about as many cached blocks are not free
        if oldest == NULL_BLOCK or (self.digests[oldest] and len(self.cached) - num_held <= self.num_kept):
            self.num_used = unused
            return unused
        if (digest := self.digests[oldest]) is not None:
            self._missed[digest] = None
            if len(self._missed) > self.num_blocks:
                del self._missed[next(iter(self._missed))]
        return oldest

    def hold(self, block: int) -> None:
        """Add one holder to `block`, which may be free."""
        assert block != NULL_BLOCK
        self.ref_counts[block] += 1
        if self.ref_counts[block] == 1:
            self._unlink(block)
            self._mirror(block)

    def release(self, block: int) -> None:
        """Remove one holder of `block`; without a holder it is free."""
        count = self.ref_counts[block] - 1
        assert count >= 0, f"block {block} is not held"
        self.ref_counts[block] = count
        self.num_gains += 1
        if not count:
            if self.digests[block] is None:
                self._link_after(NULL_BLOCK, block)
            else:
                self._link_after(self._prev[NULL_BLOCK], block)

    def name(self, block: int, blob: Blob) -> None:
        """Cache `block` under the name of `blob`, unless another block is cached under it already."""
        digest = blob.name
        assert self.ref_counts[block] > 0, f"block {block} is not held"
        if self.digests[block] is None and digest not in self.cached:
            self.digests[block], self._texts[block] = digest, blob.text
            self.cached[digest] = block
            self.num_gains += 1
            if digest in self._missed:
                del self._missed[digest]
                self.num_kept += GROWTH
            if not blob.is_whole:
                self.parts.add(block)
            for each in self.observers:
                each.stored(blob)
            self._mirror(block)

    def is_held(self, digest: bytes) -> bool:
        """Return whether a table holds the block that is cached under `digest`."""
        block = self.cached.get(digest)
        return block is not None and self.ref_counts[block] > 0

    def evict(self, block: int) -> None:
        """Drop `block` from the prefix cache because it will be overwritten; a lower tier may copy it."""
        is_whole, digest = block not in self.parts, self._uncache(block)
        if digest is not None and is_whole and self.tiers is not None:
            self.tiers.leave(Blob(digest, self._texts[block]), block)

    def forget(self, block: int) -> None:
        """Drop `block` and its copies from the prefix cache; tables that hold it keep it."""
        digest = self._uncache(block)
        if digest is not None and self.tiers is not None:
            self.tiers.forget(digest)

    def forget_all(self) -> None:
        """Forget every digest and copy."""
        self.cached.clear()
        self._missed.clear()
        self.digests = [None] * self.num_blocks
        self.parts.clear()
        if self.tiers is not None:
            self.tiers.clear()
        for each in self.observers:
            each.cleared()

    def touch_copy(self, digest: bytes) -> None:
        """Make the copies of a block the most recently used ones."""
        if self.tiers is not None:
            self.tiers.touch(digest)

    def _mirror(self, block: int) -> None:
        digest = self.digests[block]
        if digest is not None and self.tiers is not None and block not in self.parts:
            self.tiers.keep(Blob(digest, self._texts[block]), block, self.is_held)

    def _uncache(self, block: int) -> bytes | None:
        digest = self.digests[block]
        if digest is not None:
            self.digests[block] = None
            del self.cached[digest]
            for each in self.observers:
                each.removed(digest, block not in self.parts)
            self.parts.discard(block)
        return digest

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self.num_free -= 1

    def _link_after(self, before: int, block: int) -> None:
        after = self._next[before]
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self.num_free += 1
