"""Parts of blocks: the first tokens of a cached block, which a sequence copies if it differs from the block after them.

A block that a sequence leaves before it is full is cached as well, for its parts alone. Where an encoder reads
something, equal tokens do not mean equal blocks, so such sequences neither give nor take parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .blocks import BlockPool
from .hashing import Blob, HashChain, packed
from .sequence_blocks import Part, Prefix, SequenceBlocks

_MOST = 8  # blocks after one prefix that are compared, those that were cached last
_TOKEN_BYTES = 4
Copy = Callable[[int, int], None]  # copies the first block to the second


class Parts:
    """Index of cached blocks by the prefix that they follow. Implements neuronserve.server.kv_cache.blocks.Observer."""

    def __init__(self, pool: BlockPool, block_size: int, tags: Sequence[bytes], copy: Copy) -> None:
        """`tags` are those of the groups, of which the first is empty."""
        self._pool, self._size, self._tags, self._copy = pool, block_size, tags, copy
        self._known: dict[bytes, tuple[bytes, bytes]] = {}  # by name in the first group: digest before, and token ids
        self._after: dict[bytes, list[bytes]] = {}  # names by the digest before, cached last at the end
        pool.observers += (self,)

    def stored(self, blob: Blob) -> None:
        chain = blob.chain
        if chain is not None and not chain.media and not blob.tag:
            parent = chain.parent(blob.block)
            self._known[blob.name] = parent, blob.text
            self._after.setdefault(parent, []).append(blob.name)

    def removed(self, name: bytes, is_whole: bool) -> None:
        del is_whole
        if name in self._known:
            parent, _ = self._known.pop(name)
            self._after[parent].remove(name)
            if not self._after[parent]:
                del self._after[parent]

    def cleared(self) -> None:
        self._known.clear()
        self._after.clear()

    def find(self, chain: HashChain, token_ids: Sequence[int], num_blocks: int) -> Part | None:
        """Return the longest part that `token_ids` have after `num_blocks` blocks, None when there is none.

        It is less than a block, and the last token is never in it.
        """
        begin, cached = num_blocks * self._size, self._pool.cached
        text = packed(token_ids[begin : min(begin + self._size, len(token_ids)) - 1])
        shared = {
            name: _num_shared(text, self._known[name][1])
            for name in self._after.get(chain.parent(num_blocks), ())[-_MOST:]
            if not chain.media and all(name + tag in cached for tag in self._tags)
        }
        best = max(shared, key=lambda name: shared[name], default=b"")
        if not (count := shared.get(best, 0)):
            return None
        is_all = len(self._known[best][1]) == count * _TOKEN_BYTES
        return Part(count, tuple(cached[best + tag] for tag in self._tags), is_all)

    def hold(self, part: Part | None, num_spare: int) -> list[list[int]]:
        """Hold the blocks of a part until `copy`. Returns the block of each group that needs no copy.

        These are free, and the sequence goes on in them: it continues all of it, or too few blocks are spare.
        """
        pool, own = self._pool, list[list[int]]()
        if part is None:
            return own
        is_moved = part.is_all or sum(pool.ref_counts[block] == 0 for block in part.blocks) > num_spare
        for block in part.blocks:
            own.append([block] if is_moved and pool.ref_counts[block] == 0 else [])
            pool.hold(block)
            if own[-1]:
                pool.evict(block)
        return own

    def copy(self, blocks: SequenceBlocks, prefix: Prefix) -> None:
        """Copy the part of a prefix into the blocks of the sequence that begins with it."""
        for table, source in zip(blocks.tables, prefix.part.blocks if prefix.part else (), strict=False):
            if table[prefix.num_blocks] != source:
                self._copy(source, table[prefix.num_blocks])
                self._pool.release(source)

    def leave(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Cache the last block of a sequence that ends, if it is not full but worth a block: at least half full."""
        num_full, num_left = divmod(num_computed_tokens, self._size)
        if 2 * num_left >= self._size and blocks.num_blocks and not blocks.chain.media:
            for table, tag in zip(blocks.tables, self._tags, strict=True):
                self._pool.name(table[num_full], blocks.chain.blob(token_ids, num_full, tag, num_left))

    def audit(self) -> list[str]:
        """Return the violations, one line each: a cached block is known once, and of those that follow its prefix."""
        names = [(name, parent) for parent, each in self._after.items() for name in each]
        is_indexed = sorted(names) == sorted((name, parent) for name, (parent, _) in self._known.items())
        is_cached = self._known.keys() <= self._pool.cached.keys()
        return [] if is_indexed and is_cached else ["the index of parts is not that of cached blocks"]


def _num_shared(a: bytes, b: bytes) -> int:
    """Count the token ids with which both texts begin."""
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return same // _TOKEN_BYTES
