"""Search for the longest known prefix of a sequence: what is on the device, and what a tier below offers beside it.

Owns nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..config import CacheConfig
from .blocks import NULL_BLOCK, BlockPool
from .hashing import HashChain
from .parts import Parts
from .sequence_blocks import NO_PREFIX, Prefix
from .state_slots import NO_STATE, TO_LOAD
from .tiers import Tiers


def group_tags(config: CacheConfig) -> tuple[bytes, ...]:
    """Return what is appended to a digest in each group, so that a block is found only in its own."""
    return tuple(bytes([group]) if group else b"" for group in range(len(config.groups)))


class Offers:
    """Container of the names that are on the device or worth loading."""

    def __init__(self, cached: Container[bytes], tiers: Tiers | None, num_tokens: int) -> None:
        """`num_tokens`: tokens that need not be computed because of one blob."""
        self._cached, self._tiers, self._num_tokens = cached, tiers, num_tokens

    def __contains__(self, name: object) -> bool:
        if name in self._cached:
            return True
        return isinstance(name, bytes) and self._tiers is not None and self._tiers.is_offered(name, self._num_tokens)


class PrefixFinder:
    """Finds prefixes by the digests of their blocks."""

    def __init__(self, config: CacheConfig, blocks: BlockPool, states: BlockPool | None) -> None:
        self._config, self._blocks, self._states = config, blocks, states
        self.parts: Parts | None = None  # None: none are copied
        self._size, self._tags = config.block_size, group_tags(config)
        self._windowed = tuple(g for g, span in enumerate(config.groups) if span.window)
        self._whole = tuple(g for g, span in enumerate(config.groups) if not span.window)

    def find(self, chain: HashChain, token_ids: Sequence[int], most: int) -> Prefix:
        """Return the longest prefix of at most `most` blocks that is worth sharing, and a part after it."""
        digests = chain.digests
        own = self._longest(digests, most, self._blocks.cached, {} if self._states is None else self._states.cached)
        if self._blocks.tiers is not None and (num_blocks := self._longest(digests, most, *self._offers())) > own:
            prefix = self._prefix(chain, token_ids, num_blocks, own)
            if self._is_worth_loading(prefix, digests):
                return prefix
        return self._prefix(chain, token_ids, own, own)

    def _offers(self) -> tuple[Container[bytes], Container[bytes]]:
        """Return containers of the blocks and of the states that are cached or worth loading."""
        blocks = Offers(self._blocks.cached, self._blocks.tiers, self._size // len(self._tags))
        if self._states is None:
            return blocks, ()
        return blocks, Offers(self._states.cached, self._states.tiers, self._size * self._config.snapshot_blocks)

    def _longest(
        self, digests: Sequence[bytes], most: int, cached: Container[bytes], snapshots: Container[bytes]
    ) -> int:
        """Return the blocks of the longest prefix, up to `most`, whose blocks and state are in the containers."""
        num_blocks = most
        for tag in (self._tags[group] for group in self._whole):
            for i in range(num_blocks):
                if digests[i] + tag not in cached:
                    num_blocks = i
                    break
        while num_blocks and (shorter := self._shorter(digests, num_blocks, cached, snapshots)) is not None:
            num_blocks = shorter
        return num_blocks

    def _prefix(self, chain: HashChain, token_ids: Sequence[int], num_blocks: int, num_own: int) -> Prefix:
        part = None if self.parts is None else self.parts.find(chain, token_ids, num_blocks)
        if not num_blocks and part is None:
            return NO_PREFIX
        position = num_blocks * self._size + (part.num_tokens if part else 0)
        digests = chain.digests[:num_blocks]
        tables = tuple(self._cached(group, digests, position) for group in range(len(self._tags)))
        state = NO_STATE if self._states is None else self._states.cached.get(digests[-1], TO_LOAD)
        return Prefix(num_blocks, tables, state, num_own, part)

    def _is_worth_loading(self, prefix: Prefix, digests: Sequence[bytes]) -> bool:
        """Return whether loading all that a prefix lacks is predicted to be cheaper than computing its tokens."""
        tiers, states = self._blocks.tiers, None if self._states is None else self._states.tiers
        assert tiers is not None
        seconds = sum(
            tiers.seconds(digests[i] + tag)
            for table, tag in zip(prefix.tables, self._tags, strict=True)
            for i, block in enumerate(table)
            if block == TO_LOAD
        )
        if prefix.state == TO_LOAD and states is not None:
            seconds += states.seconds(digests[prefix.num_blocks - 1])
        return tiers.is_worth(seconds, (prefix.num_blocks - prefix.num_own) * self._size)

    def _shorter(
        self, digests: Sequence[bytes], num_blocks: int, cached: Container[bytes], snapshots: Container[bytes]
    ) -> int | None:
        """Return a limit of shorter prefixes where one of `num_blocks` blocks lacks a block or its state, else None."""
        if self._states is not None and digests[num_blocks - 1] not in snapshots:
            return num_blocks - 1
        missing = max((self._last_missing(group, digests, num_blocks, cached) for group in self._windowed), default=-1)
        return None if missing < 0 else missing

    def _last_missing(self, group: int, digests: Sequence[bytes], num_blocks: int, cached: Container[bytes]) -> int:
        """Return the last uncached block that the token after `num_blocks` blocks sees; -1 if all are cached.

        No shorter prefix that ends behind that block is cached either.
        """
        tag = self._tags[group]
        seen = range(num_blocks - 1, self._num_behind(group, num_blocks * self._size) - 1, -1)
        return next((i for i in seen if digests[i] + tag not in cached), -1)

    def _cached(self, group: int, digests: Sequence[bytes], position: int) -> Sequence[int]:
        """Return the blocks of a prefix that the token at `position` sees."""
        cached, tag = self._blocks.cached, self._tags[group]
        behind = self._num_behind(group, position)
        return [NULL_BLOCK] * behind + [cached.get(digest + tag, TO_LOAD) for digest in digests[behind:]]

    def _num_behind(self, group: int, position: int) -> int:
        return self._config.groups[group].num_behind(position) // self._size
