"""The KV cache of one engine: which blocks a sequence holds, and which prefixes can be shared.

Owns the pool and the counters of prefix hits. The scheduler decides which sequence gets blocks.

Where every layer has a window, blocks that no token will attend to again are given back: the null block stands in their
place, at the beginning of a table, and a prefix is found by the blocks that its next token sees.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.config import CacheConfig
from server.kv_cache.blocks import NULL_BLOCK, BlockPool
from server.kv_cache.hashing import HashChain


class SequenceBlocks:
    """The blocks of one sequence: `ids[i]` holds positions `i * block_size` and up. Changed by the manager alone.

    `ids` never gets shorter while the sequence runs, and is replaced, never emptied, when its blocks are freed: a plan
    may still refer to it.
    """

    __slots__ = ("chain", "ids", "num_dropped", "num_named")

    def __init__(self, chain: HashChain) -> None:
        self.chain = chain
        self.ids: list[int] = []
        self.num_named = 0  # leading blocks offered to the prefix cache already
        self.num_dropped = 0  # leading blocks given back, in whose place the null block is


class KVCacheManager:
    """Allocation, prefix lookup and release over one `BlockPool`."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.prefix_queries = 0  # prompt tokens looked up since start
        self.prefix_hits = 0  # of those, found
        self._block_size = config.block_size

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    @property
    def usage(self) -> float:
        """Share of the usable blocks that are held, 0 to 1."""
        return 1 - self.pool.num_free / (self.pool.num_blocks - 1)

    def open(self, cache_salt: str, lora: str = "") -> SequenceBlocks:
        """An empty table for a new sequence; it costs nothing until something is allocated."""
        return SequenceBlocks(HashChain(self._block_size, cache_salt, lora))

    def lookup(self, blocks: SequenceBlocks, token_ids: Sequence[int]) -> list[int]:
        """The cached blocks of the longest known prefix of `token_ids`; changes nothing.

        Whole blocks only, and never all of the tokens: the last one must be computed to give logits.
        """
        hit: list[int] = []
        if not self.config.enable_prefix_caching:
            return hit
        most = (len(token_ids) - 1) // self._block_size
        blocks.chain.extend(token_ids, most)
        cached = self.pool.cached
        if self.config.window:
            return self._windowed_hit([cached.get(digest) for digest in blocks.chain.digests[:most]])
        for digest in blocks.chain.digests[:most]:
            block = cached.get(digest)
            if block is None:
                break
            hit.append(block)
        return hit

    def _windowed_hit(self, found: list[int | None]) -> list[int]:
        """The longest prefix of `found` in whose end all blocks that the next token sees are there."""
        hit: list[int] = []
        num_present = 0  # without a gap, up to the last one looked at
        for i, block in enumerate(found):
            num_present = 0 if block is None else num_present + 1
            num_dropped = self.num_behind((i + 1) * self._block_size)
            if num_present >= i + 1 - num_dropped:
                hit = [NULL_BLOCK] * num_dropped + [block for block in found[num_dropped : i + 1] if block is not None]
        return hit

    def num_behind(self, position: int) -> int:
        """Leading blocks that neither a token at `position` nor any after it attends to."""
        return max(0, position - self.config.window + 1) // self._block_size if self.config.window else 0

    def allocate(
        self, blocks: SequenceBlocks, num_tokens: int, hit: Sequence[int] = (), num_spare_blocks: int = 0
    ) -> bool:
        """Make `blocks` cover `num_tokens` positions; False when it cannot, and then nothing has changed.

        `hit` is what `lookup` found for a sequence that holds nothing yet; its blocks are shared. At least
        `num_spare_blocks` must stay free, so that running sequences can grow.
        """
        ids = blocks.ids
        need = -(-num_tokens // self._block_size) - len(ids)
        if need <= 0:
            return True
        pool = self.pool
        num_new = need - len(hit)
        shared = [block for block in hit if block != NULL_BLOCK]
        num_revived = sum(pool.ref_counts[block] == 0 for block in shared)
        if num_new + num_revived + num_spare_blocks > pool.num_free:
            return False
        if hit:
            assert not ids, "a prefix can only be shared by a sequence that holds no block"
            for block in shared:
                pool.hold(block)
            ids.extend(hit)
            blocks.num_named, blocks.num_dropped = len(hit), len(hit) - len(shared)
        for _ in range(num_new):
            ids.append(pool.take())
        return True

    def commit(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Offer every block that `num_computed_tokens` computed tokens have filled to the prefix cache."""
        num_full = num_computed_tokens // self._block_size
        if num_full == blocks.num_named or not self.config.enable_prefix_caching:
            return
        blocks.chain.extend(token_ids, num_full)
        for i in range(blocks.num_named, num_full):
            self.pool.name(blocks.ids[i], blocks.chain.digests[i])
        blocks.num_named = num_full

    def drop(self, blocks: SequenceBlocks, num_computed_tokens: int) -> None:
        """Give back the blocks that no token after `num_computed_tokens` attends to, the first one first."""
        for i in range(blocks.num_dropped, self.num_behind(num_computed_tokens)):
            self.pool.release(blocks.ids[i])
            blocks.ids[i] = NULL_BLOCK
            blocks.num_dropped = i + 1

    def free(self, blocks: SequenceBlocks) -> None:
        """Release every block, last first, so that a chain is evicted from its tail. Cached blocks stay cached."""
        ids = blocks.ids[blocks.num_dropped :]
        blocks.ids, blocks.num_named, blocks.num_dropped = [], 0, 0
        for block in reversed(ids):
            self.pool.release(block)

    def discard(self, blocks: SequenceBlocks) -> None:
        """Free the blocks of a failed sequence, and drop them from the prefix cache."""
        for block in blocks.ids:
            self.pool.forget(block)
        self.free(blocks)

    def count_lookup(self, num_tokens: int, num_hits: int) -> None:
        """Count one lookup that led to an admission."""
        self.prefix_queries += num_tokens
        self.prefix_hits += num_hits

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Sequences keep the blocks they hold; those they fill later may be found."""
        self.pool.forget_all()
