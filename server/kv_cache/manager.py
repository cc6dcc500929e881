"""The KV cache of one engine: the blocks of each sequence, and the prefixes that sequences share.

Owns the pool and the counters of prefix hits. The scheduler decides which sequence gets blocks.
Layers that look back equally far are a group (config.CacheConfig), and a sequence has a table for each group. All
tables take their blocks from one pool, since blocks of all groups have the same size; a cached block is found only
under its group. In a group with a window, a table gives back the blocks that no later token looks at. The null block
takes their place at the beginning of the table, and a prefix is found by the blocks that its next token sees.

While a prompt is computed, such a table covers the window and one chunk, and takes a block for each that it gives back.
It must always get one. If it gives back a block that another sequence still holds, the pool does not grow: so a free
block is reserved when a sequence begins to share such a block. Slots of states are in state_slots.py, copies of blocks
and states that have left the device in tiers.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import CacheConfig
from ..types import MediaItem
from .blocks import NULL_BLOCK, BlockPool
from .events import CacheLog
from .hashing import Blob, HashChain
from .parts import Copy, Parts
from .prefix_finder import PrefixFinder, group_tags
from .sequence_blocks import NO_PREFIX, Prefix, SequenceBlocks
from .state_slots import TO_LOAD, StateSlots
from .tiers import Tiers, sum_transfers


class KVCacheManager:
    """Allocation, prefix lookup and release over one `BlockPool`."""

    def __init__(
        self, config: CacheConfig, tiers: Tiers | None = None, states: Tiers | None = None, copy: Copy | None = None
    ) -> None:
        """`tiers` have copies of blocks, `states` those of states; without `copy`, only whole blocks are shared."""
        self.config = config
        has_prefixes = config.enable_prefix_caching
        self.pool = BlockPool(config.num_blocks, tiers if has_prefixes else None, config.grows)
        slots = config.num_states, config.block_size, config.snapshot_blocks, has_prefixes, states
        self.states = StateSlots(*slots) if config.num_states else None
        self.prefix_queries = 0  # prompt tokens looked up since start
        self.prefix_hits = 0  # of those, found on the device
        self.num_loaded_tokens = 0  # of those, loaded from a tier
        self._block_size = size = config.block_size
        self.windowed = tuple(g for g, span in enumerate(config.groups) if span.window)
        self.has_drops = bool(self.windowed) or self.states is not None  # so that `drop` has something to do
        most = config.num_blocks * size  # tokens: no table is longer
        self.widths = tuple(span.most_blocks(most, size, config.max_chunk) for span in config.groups)  # in blocks
        self._tags = group_tags(config)
        self.finder = PrefixFinder(config, self.pool, None if self.states is None else self.states.pool)
        if copy is not None and has_prefixes and self.states is None:
            self.finder.parts = Parts(self.pool, size, self._tags, copy)
        self.num_reserved = 0  # free blocks, for tables that share a block which they will give back

    def follow(self) -> CacheLog:
        """Return a log of what is cached from now on."""
        log = CacheLog(self.config)
        logs = [(self.pool, log), *([] if self.states is None else [(self.states.pool, log.of_states())])]
        for pool, each in logs:
            pool.observers += (each,)
            for tier in pool.tiers.tiers if pool.tiers else ():
                tier.log = each
        return log

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

    def open(
        self, cache_salt: str, lora: str = "", media: Sequence[MediaItem] = (), is_begun: bool = False
    ) -> SequenceBlocks:
        """Return empty tables for a new sequence; they cost nothing until blocks are allocated. See HashChain."""
        for tiers in self._tiers if is_begun else ():  # another engine may have its blocks
            tiers.ask_peers()
        return SequenceBlocks(HashChain(self._block_size, cache_salt, lora, media), self.num_groups)

    def lookup(self, blocks: SequenceBlocks, token_ids: Sequence[int]) -> Prefix:
        """Return the cached blocks of the longest known prefix of `token_ids`; changes nothing.

        A prefix is never all tokens: the last token must be computed to give logits.
        """
        if not self.config.enable_prefix_caching:
            return NO_PREFIX
        most = (len(token_ids) - 1) // self._block_size
        blocks.chain.extend(token_ids, most)
        return self.finder.find(blocks.chain, token_ids, most)

    def num_tokens(self, prefix: Prefix) -> int:
        """Return the tokens of a prefix."""
        return prefix.num_blocks * self._block_size + (prefix.part.num_tokens if prefix.part else 0)

    def _num_behind(self, group: int, position: int) -> int:
        """Count the leading blocks of a group that no token from `position` on looks at."""
        return self.config.groups[group].num_behind(position) // self._block_size

    def next_shared(self, prefix: Prefix, num_prompt_tokens: int) -> int:
        """Return the block after which a sequence could share more than `prefix`, if another one computes it first."""
        at = prefix.num_blocks * self._block_size
        boundary = None if self.states is None else self.states.next_boundary(at, num_prompt_tokens)
        return prefix.num_blocks if boundary is None else boundary // self._block_size - 1

    def load(self, blocks: SequenceBlocks, token_ids: Sequence[int], prefix: Prefix) -> bool:
        """Load what `allocate` has given `prefix` room for, where it lacks blocks or its state.

        Returns False when a copy was not whole, which drops it: free `blocks` and look up a shorter prefix.
        """
        if self.states is not None and prefix.state == TO_LOAD:
            last = blocks.chain.blob(token_ids, prefix.num_blocks - 1)
            is_whole = _load(self.states.pool, last, blocks.state.slot)
        else:
            is_whole = True
        return is_whole and all(
            _load(self.pool, blocks.chain.blob(token_ids, i, tag), table[i])
            for table, found, tag in zip(blocks.tables, prefix.tables, self._tags, strict=False)
            for i, block in enumerate(found)
            if block == TO_LOAD
        )

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
        position = self.num_tokens(prefix)
        dropped = [self._num_behind(g, position) for g in range(self.num_groups)] if position else blocks.num_dropped
        ends = [min(num_blocks, first + most) for first, most in zip(dropped, self.widths, strict=True)]
        num_new = sum(ends) - sum(map(len, prefix.tables or blocks.tables))
        num_spare = self.num_free_blocks - num_new - self._num_taken_by(prefix) - num_growing * self.num_groups
        if num_spare < 0:
            return False
        if not blocks.num_blocks and not self._begin_state(blocks, prefix):
            return False
        if position:
            self._share(blocks, prefix, num_spare)
            blocks.num_named, blocks.num_dropped = prefix.num_blocks, dropped
        for table, end in zip(blocks.tables, ends, strict=True):
            for _ in range(len(table), end):
                table.append(self.pool.take())
        if self.finder.parts is not None:
            self.finder.parts.copy(blocks, prefix)
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
        """Count the free blocks that sharing `prefix` takes: those without a holder or a block, and reserved ones."""
        counts = self.pool.ref_counts
        return sum(
            block == TO_LOAD or (block != NULL_BLOCK and (group in self.windowed or counts[block] == 0))
            for group, table in enumerate(prefix.tables)
            for block in table
        )

    def _share(self, blocks: SequenceBlocks, prefix: Prefix, num_spare: int) -> None:
        assert not blocks.num_blocks, "a prefix can only be shared by a sequence that holds no block"
        own = () if self.finder.parts is None else self.finder.parts.hold(prefix.part, num_spare)
        for group, (table, ids) in enumerate(zip(blocks.tables, prefix.tables, strict=True)):
            for block in ids:
                if block not in {NULL_BLOCK, TO_LOAD}:
                    self.num_reserved += group in self.windowed and self.pool.ref_counts[block] > 0
                    self.pool.hold(block)
            table.extend(ids)
        for table, tag in zip(blocks.tables, self._tags, strict=True):  # once no shared block is free any more
            for i in [i for i, block in enumerate(table) if block == TO_LOAD]:
                self.pool.touch_copy(blocks.chain.digests[i] + tag)  # so that it makes no room for others
        for table in blocks.tables:
            table[:] = [self.pool.take() if block == TO_LOAD else block for block in table]
        for table, first in zip(blocks.tables, own, strict=False):
            table.extend(first)

    def commit(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Offer every block that `num_computed_tokens` computed tokens have filled to the prefix cache."""
        num_full = num_computed_tokens // self._block_size
        if num_full == blocks.num_named or not self.config.enable_prefix_caching:
            return
        blocks.chain.extend(token_ids, num_full)
        for table, tag in zip(blocks.tables, self._tags, strict=True):
            for i in range(blocks.num_named, num_full):
                self.pool.name(table[i], blocks.chain.blob(token_ids, i, tag))
        blocks.num_named = num_full
        if self.states is not None:
            self.states.commit(blocks.state, blocks.chain, token_ids, num_computed_tokens)

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

    def free(self, blocks: SequenceBlocks, token_ids: Sequence[int] = (), num_computed_tokens: int = 0) -> None:
        """Release every block, last first, so that a chain is evicted from its tail. Cached blocks stay cached.

        The last one may too, though it is not full, if its computed tokens are given.
        """
        if self.finder.parts is not None:
            self.finder.parts.leave(blocks, token_ids, num_computed_tokens)
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
                self.pool.forget(block)
        if self.states is not None:
            self.states.forget(blocks.chain.digests)
        self.free(blocks)

    def count_lookup(self, num_tokens: int, prefix: Prefix) -> None:
        """Count one lookup of a prompt of `num_tokens` tokens that led to an admission."""
        size = self._block_size
        num_found = min(num_tokens, self.num_tokens(prefix))  # a resumed sequence shares more than its prompt
        num_loaded = min(num_found, prefix.num_blocks * size) - min(num_found, prefix.num_own * size)
        self.prefix_queries += num_tokens
        self.prefix_hits += num_found - num_loaded
        self.num_loaded_tokens += num_loaded

    def take_received(self, request_id: str) -> list[tuple[str, int, int]]:
        """Return what other engines gave since the last call, all for this request; nothing if they gave nothing."""
        counts = [*[tiers.take_received() for tiers in self._tiers], 0, 0]
        return [(request_id, counts[0], counts[1])] if any(counts) else []

    @property
    def _tiers(self) -> list[Tiers]:
        """Tiers of blocks, and of states where layers keep one."""
        pools = [self.pool, *([] if self.states is None else [self.states.pool])]
        return [pool.tiers for pool in pools if pool.tiers is not None]

    def tier_report(self) -> tuple[float, int, dict[str, tuple[int, float]]] | None:
        """Return the share of the first tier in use, loaded tokens, bytes and seconds of copies; None without tiers."""
        tiers = self._tiers
        return (tiers[0].usage, self.num_loaded_tokens, sum_transfers(tiers)) if tiers else None

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Sequences keep their blocks; blocks that they fill later may be found."""
        self.pool.forget_all()
        if self.states is not None:
            self.states.pool.forget_all()


def _load(pool: BlockPool, blob: Blob, place: int) -> bool:
    """Load a copy to `place` and cache it there."""
    if pool.tiers is None or not pool.tiers.load(blob, place):
        return False
    pool.name(place, blob)
    return True
