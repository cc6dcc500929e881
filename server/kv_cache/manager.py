"""The KV cache of one engine: the blocks of each sequence, and the prefixes that sequences share.

Owns the pool and the counters of prefix hits. The scheduler decides which sequence gets blocks.

Layers that look back equally far are a group (config.CacheConfig), and a sequence has a table for each group. All
tables take their blocks from one pool, since blocks of all groups have the same size; a cached block is found only
under its group. In a group with a window, a table gives back the blocks that no later token looks at. The null block
takes their place at the beginning of the table, and a prefix is found by the blocks that its next token sees.

While a prompt is computed, such a table covers the window and one chunk, and takes a block for each that it gives back.
It must always get one. If it gives back a block that another sequence still holds, the pool does not grow: so a free
block is reserved when a sequence begins to share such a block. Slots of states are in state_slots.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import CacheConfig
from ..types import MediaItem
from .blocks import NULL_BLOCK, BlockPool
from .copies import Copies
from .hashing import HashChain
from .sequence_blocks import NO_PREFIX, Prefix, SequenceBlocks
from .state_slots import NO_STATE, StateSlots


class KVCacheManager:
    """Allocation, prefix lookup and release over one `BlockPool`."""

    def __init__(self, config: CacheConfig, copies: Copies | None = None) -> None:
        self.config, self._copies = config, copies
        self.pool = BlockPool(config.num_blocks, None if copies is None else copies.keep)
        states = config.num_states, config.block_size, config.snapshot_blocks, config.enable_prefix_caching
        self.states = StateSlots(*states) if config.num_states else None
        self.prefix_queries = 0  # prompt tokens looked up since start
        self.prefix_hits = 0  # of those, found
        self._block_size = size = config.block_size
        self.windowed = tuple(g for g, span in enumerate(config.groups) if span.window)
        most = config.num_blocks * size  # tokens: no table is longer
        self.widths = tuple(span.most_blocks(most, size, config.max_chunk) for span in config.groups)  # in blocks
        # Appended to a digest, so that a block is found only in its own group.
        self._tags = tuple(bytes([g]) if g else b"" for g in range(len(config.groups)))
        self.num_reserved = 0  # free blocks, for tables that share a block which they will give back

    @property
    def num_groups(self) -> int:
        return len(self.widths)

    @property
    def num_free_blocks(self) -> int:
        """Free blocks that are not reserved."""
        return self.pool.num_free - self.num_reserved

    @property
    def num_gains(self) -> int:
        """Releases and namings of blocks and slots; while it does not change, a refused allocation stays refused."""
        return self.pool.num_gains + (0 if self.states is None else self.states.pool.num_gains)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that are held, 0 to 1."""
        return 1 - self.pool.num_free / (self.pool.num_blocks - 1)

    def open(self, cache_salt: str, lora: str = "", media: Sequence[MediaItem] = ()) -> SequenceBlocks:
        """Return empty tables for a new sequence; they cost nothing until blocks are allocated. See HashChain."""
        return SequenceBlocks(HashChain(self._block_size, cache_salt, lora, media), self.num_groups)

    def lookup(self, blocks: SequenceBlocks, token_ids: Sequence[int]) -> Prefix:
        """Return the cached blocks of the longest known prefix of `token_ids`; changes nothing.

        A prefix is whole blocks and never all tokens: the last token must be computed to give logits.
        """
        if not self.config.enable_prefix_caching:
            return NO_PREFIX
        most = (len(token_ids) - 1) // self._block_size
        blocks.chain.extend(token_ids, most)
        digests, num_blocks = blocks.chain.digests, most
        for group in range(self.num_groups):
            if group not in self.windowed:
                num_blocks = self._count_cached(group, digests, num_blocks)
        while num_blocks and (shorter := self._shorter(digests, num_blocks)) is not None:
            num_blocks = shorter
        if not num_blocks:
            return NO_PREFIX
        tables = tuple(self._cached(group, digests, num_blocks) for group in range(self.num_groups))
        state = NO_STATE if self.states is None else self.states.pool.cached[digests[num_blocks - 1]]
        return Prefix(num_blocks, tables, state)

    def _shorter(self, digests: Sequence[bytes], num_blocks: int) -> int | None:
        """Return a limit of shorter prefixes where one of `num_blocks` blocks lacks a block or its state, else None."""
        if self.states is not None and digests[num_blocks - 1] not in self.states.pool.cached:
            return num_blocks - 1
        missing = max((self._last_missing(group, digests, num_blocks) for group in self.windowed), default=-1)
        return None if missing < 0 else missing

    def _count_cached(self, group: int, digests: Sequence[bytes], most: int) -> int:
        """Count the leading blocks that are cached, up to `most`."""
        cached, tag = self.pool.cached, self._tags[group]
        return next((i for i in range(most) if digests[i] + tag not in cached), most)

    def _last_missing(self, group: int, digests: Sequence[bytes], num_blocks: int) -> int:
        """Return the last uncached block that the token after `num_blocks` blocks sees; -1 if all are cached.

        No shorter prefix that ends behind that block is cached either.
        """
        cached, tag = self.pool.cached, self._tags[group]
        seen = range(num_blocks - 1, self._num_behind(group, num_blocks * self._block_size) - 1, -1)
        return next((i for i in seen if digests[i] + tag not in cached), -1)

    def _cached(self, group: int, digests: Sequence[bytes], num_blocks: int) -> Sequence[int]:
        cached, tag = self.pool.cached, self._tags[group]
        behind = self._num_behind(group, num_blocks * self._block_size)
        return [NULL_BLOCK] * behind + [cached[digest + tag] for digest in digests[behind:num_blocks]]

    def _num_behind(self, group: int, position: int) -> int:
        """Count the leading blocks of a group that no token from `position` on looks at."""
        return self.config.groups[group].num_behind(position) // self._block_size

    def next_shared(self, prefix: Prefix, num_prompt_tokens: int) -> int:
        """Return the block after which a sequence could share more than `prefix`, if another one computes it first."""
        at = prefix.num_blocks * self._block_size
        boundary = None if self.states is None else self.states.next_boundary(at, num_prompt_tokens)
        return prefix.num_blocks if boundary is None else boundary // self._block_size - 1

    def restore(self, blocks: SequenceBlocks, token_ids: Sequence[int]) -> int:
        """Restore copies of the blocks of a prefix of `token_ids` to the cache; return their number."""
        if self._copies is None or not self.config.enable_prefix_caching:
            return 0
        blocks.chain.extend(token_ids, (len(token_ids) - 1) // self._block_size)
        names = [digest + tag for digest in blocks.chain.digests for tag in self._tags]
        found = [name for name in names if name in self._copies and name not in self.pool.cached]
        return sum(self._restore(name, self._copies) for name in found[: self.num_free_blocks])

    def _restore(self, name: bytes, copies: Copies) -> bool:
        block = self.pool.take()
        is_whole = copies.restore(name, block)
        if is_whole:
            self.pool.name(block, name)
        self.pool.release(block)
        return is_whole

    def allocate(
        self, blocks: SequenceBlocks, num_tokens: int, prefix: Prefix = NO_PREFIX, num_growing: int = 0
    ) -> bool:
        """Make `blocks` cover `num_tokens` positions; return False, having changed nothing, when blocks are missing.

        Tables with a window cover as many as fit in a window and a chunk, and `drop` moves them on. `prefix` is the
        result of `lookup` for a sequence that holds nothing yet; its blocks are shared. A block of each group must stay
        free for each of `num_growing` running sequences.
        """
        num_blocks = -(-num_tokens // self._block_size)
        if num_blocks <= blocks.num_blocks:
            return True
        position = prefix.num_blocks * self._block_size
        dropped = [self._num_behind(g, position) for g in range(self.num_groups)] if position else blocks.num_dropped
        ends = [min(num_blocks, first + most) for first, most in zip(dropped, self.widths, strict=True)]
        num_new = sum(ends) - sum(map(len, prefix.tables or blocks.tables))
        if num_new + self._num_taken_by(prefix) + num_growing * self.num_groups > self.num_free_blocks:
            return False
        if not blocks.num_blocks and not self._begin_state(blocks, prefix):
            return False
        if position:
            self._share(blocks, prefix)
            blocks.num_named, blocks.num_dropped = prefix.num_blocks, dropped
        for table, end in zip(blocks.tables, ends, strict=True):
            for _ in range(len(table), end):
                table.append(self.pool.take())
        blocks.num_blocks = num_blocks
        return True

    def _begin_state(self, blocks: SequenceBlocks, prefix: Prefix) -> bool:
        """Allocate the state's slot of a sequence that holds none, if layers keep one; False: none is free."""
        if self.states is None:
            return True
        if not self.states.is_free_for(prefix.state):
            return False
        self.states.begin(blocks.state, prefix.state)
        return True

    def _num_taken_by(self, prefix: Prefix) -> int:
        """Count the free blocks that sharing `prefix` takes: its blocks without a holder, and the reserved ones."""
        counts = self.pool.ref_counts
        return sum(
            block != NULL_BLOCK and (group in self.windowed or counts[block] == 0)
            for group, table in enumerate(prefix.tables)
            for block in table
        )

    def _share(self, blocks: SequenceBlocks, prefix: Prefix) -> None:
        assert not blocks.num_blocks, "a prefix can only be shared by a sequence that holds no block"
        for group, (table, ids) in enumerate(zip(blocks.tables, prefix.tables, strict=True)):
            for block in ids:
                if block != NULL_BLOCK:
                    self.num_reserved += group in self.windowed and self.pool.ref_counts[block] > 0
                    self.pool.hold(block)
            table.extend(ids)

    def commit(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Offer every block that `num_computed_tokens` computed tokens have filled to the prefix cache."""
        num_full = num_computed_tokens // self._block_size
        if num_full == blocks.num_named or not self.config.enable_prefix_caching:
            return
        blocks.chain.extend(token_ids, num_full)
        for table, tag in zip(blocks.tables, self._tags, strict=True):
            for i in range(blocks.num_named, num_full):
                self.pool.name(table[i], blocks.chain.digests[i] + tag)
        blocks.num_named = num_full
        if self.states is not None:
            self.states.commit(blocks.state, blocks.chain.digests, num_computed_tokens)

    def drop(self, blocks: SequenceBlocks, num_computed_tokens: int) -> None:
        """Give back the blocks that no token after `num_computed_tokens` looks at, first block first.

        A table that does not cover all allocated blocks yet takes as many.
        """
        if self.states is not None:
            self.states.drop(blocks.state, num_computed_tokens)
        for group in self.windowed:
            behind = self._num_behind(group, num_computed_tokens)
            if behind > blocks.num_dropped[group]:
                table = blocks.tables[group]
                for i in range(blocks.num_dropped[group], behind):
                    self._release(group, table[i])
                    table[i] = NULL_BLOCK
                blocks.num_dropped[group] = behind
                for _ in range(len(table), min(blocks.num_blocks, behind + self.widths[group])):
                    table.append(self.pool.take())

    def free(self, blocks: SequenceBlocks) -> None:
        """Release every block, last first, so that a chain is evicted from its tail. Cached blocks stay cached."""
        tables = blocks.tables
        if self.states is not None:
            self.states.free(blocks.state)
        blocks.clear(self.num_groups)
        for i in reversed(range(max(map(len, tables)))):
            for group, table in enumerate(tables):
                if i < len(table) and table[i] != NULL_BLOCK:
                    self._release(group, table[i])

    def _release(self, group: int, block: int) -> None:
        self.pool.release(block)
        self.num_reserved -= group in self.windowed and self.pool.ref_counts[block] > 0

    def discard(self, blocks: SequenceBlocks) -> None:
        """Free the blocks of a failed sequence, and drop them from the prefix cache."""
        for table in blocks.tables:
            for block in table:
                digest = self.pool.digests[block]
                if digest is not None and self._copies is not None:
                    self._copies.forget(digest)
                self.pool.forget(block)
        if self.states is not None:
            self.states.forget(blocks.chain.digests)
        self.free(blocks)

    def count_lookup(self, num_tokens: int, num_hits: int) -> None:
        """Count one lookup that led to an admission."""
        self.prefix_queries += num_tokens
        self.prefix_hits += num_hits

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Sequences keep their blocks; blocks that they fill later may be found."""
        self.pool.forget_all()
        if self.states is not None:
            self.states.pool.forget_all()
        if self._copies is not None:
            self._copies.clear()
