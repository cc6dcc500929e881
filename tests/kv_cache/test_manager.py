"""The manager against a shadow of what was really computed into each block."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.config import CacheConfig
from server.kv_cache.audit import audit
from server.kv_cache.blocks import NULL_BLOCK
from server.kv_cache.manager import KVCacheManager, SequenceBlocks

BLOCK = 4


def manager(num_blocks: int = 9, *, enable_prefix_caching: bool = True, window: int = 0) -> KVCacheManager:
    return KVCacheManager(CacheConfig(num_blocks, BLOCK, enable_prefix_caching, window))


def run(cache: KVCacheManager, tokens: list[int], salt: str = "") -> SequenceBlocks:
    """A sequence whose tokens are all computed."""
    blocks = cache.open(salt)
    assert cache.allocate(blocks, len(tokens), cache.lookup(blocks, tokens))
    cache.commit(blocks, tokens, len(tokens))
    return blocks


def snapshot(cache: KVCacheManager) -> dict[str, Any]:
    return copy.deepcopy(vars(cache.pool))


class Books(RuleBasedStateMachine):
    """Sequences over a tiny alphabet, so that prefixes meet often, in a tiny cache, so that they are evicted."""

    window = 0

    def __init__(self) -> None:
        super().__init__()
        self.cache = manager(window=self.window)
        self.open: list[tuple[SequenceBlocks, str, list[int]]] = []
        self.written: dict[int, tuple[str, list[int]]] = {}  # block -> the salt and whole prefix it holds

    def write(self, blocks: SequenceBlocks, salt: str, tokens: list[int], start: int) -> None:
        for i in range(start // BLOCK, len(blocks.ids)):
            self.written[blocks.ids[i]] = (salt, tokens[: (i + 1) * BLOCK])
        self.cache.commit(blocks, tokens, len(tokens))
        self.cache.drop(blocks, len(tokens))
        assert blocks.num_dropped == (max(0, len(tokens) - self.window + 1) // BLOCK if self.window else 0)

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        salt=st.sampled_from(["", "s"]),
        num_spare=st.integers(0, 3),
    )
    def start(self, tokens: list[int], salt: str, num_spare: int) -> None:
        blocks = self.cache.open(salt)
        before = snapshot(self.cache)
        hit = self.cache.lookup(blocks, tokens)
        assert len(hit) * BLOCK < len(tokens)
        for i, block in enumerate(hit):
            is_behind = self.window > 0 and (i + 1) * BLOCK <= len(hit) * BLOCK - self.window + 1
            assert (block == NULL_BLOCK) == is_behind
            assert is_behind or self.written[block] == (salt, tokens[: (i + 1) * BLOCK])
        assert snapshot(self.cache) == before
        if self.cache.allocate(blocks, len(tokens), hit, num_spare):
            assert self.cache.num_free_blocks >= num_spare
            self.open.append((blocks, salt, tokens))
            self.write(blocks, salt, tokens, len(hit) * BLOCK)
        else:
            assert snapshot(self.cache) == before
            assert not blocks.ids

    @precondition(lambda self: self.open)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        blocks, salt, tokens = data.draw(st.sampled_from(self.open))
        before, old_ids = snapshot(self.cache), list(blocks.ids)
        if self.cache.allocate(blocks, len(tokens) + len(more)):
            assert blocks.ids[: len(old_ids)] == old_ids
            start = len(tokens)
            tokens += more
            self.write(blocks, salt, tokens, start)
        else:
            assert (snapshot(self.cache), blocks.ids) == (before, old_ids)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), is_broken=st.booleans())
    def end(self, data: st.DataObject, is_broken: bool) -> None:
        index = data.draw(st.integers(0, len(self.open) - 1))
        blocks, _, _ = self.open.pop(index)
        ids = list(blocks.ids)
        (self.cache.discard if is_broken else self.cache.free)(blocks)
        assert not is_broken or not set(ids) & set(self.cache.pool.cached.values())

    @rule()
    def reset(self) -> None:
        self.cache.reset_prefix_cache()
        assert not self.cache.pool.cached

    @invariant()
    def books_balance(self) -> None:
        assert audit(self.cache, [blocks for blocks, _, _ in self.open]) == []

    @invariant()
    def usage_is_the_share_held(self) -> None:
        held = {block for blocks, _, _ in self.open for block in blocks.ids[blocks.num_dropped :]}
        assert abs(self.cache.usage - len(held) / 8) < 1e-9


Books.TestCase.settings = settings(stateful_step_count=40)
TestBooks = Books.TestCase


class SlidingBooks(Books):
    """Where every layer has a window of a block and a half."""

    window = 6


SlidingBooks.TestCase.settings = settings(stateful_step_count=40)
TestSlidingBooks = SlidingBooks.TestCase


def test_a_prompt_that_is_cached_whole_still_computes_its_last_block() -> None:
    cache = manager()
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    cache.free(run(cache, tokens))
    assert len(cache.lookup(cache.open(""), tokens)) == 1
    assert len(cache.lookup(cache.open(""), [*tokens, 9])) == 2


def test_a_chain_is_evicted_from_its_tail() -> None:
    cache = manager(num_blocks=5)
    chain = run(cache, list(range(16)))
    ids = list(chain.ids)
    cache.free(chain)
    run(cache, [99] * 4)
    assert cache.lookup(cache.open(""), list(range(16))) == ids[:3]


def test_only_computed_tokens_are_cached() -> None:
    cache = manager()
    blocks, tokens = cache.open(""), list(range(12))
    assert cache.allocate(blocks, 12)
    cache.commit(blocks, tokens, 7)
    assert len(cache.lookup(cache.open(""), tokens)) == 1
    cache.commit(blocks, tokens, 8)
    assert len(cache.lookup(cache.open(""), tokens)) == 2


def test_sequences_with_the_same_prefix_hold_the_same_blocks() -> None:
    cache = manager()
    first, second = run(cache, [1] * 8), run(cache, [1] * 9)
    assert first.ids == second.ids[:2]
    assert cache.num_free_blocks == 8 - 3


def test_another_salt_shares_nothing() -> None:
    cache = manager()
    run(cache, [1] * 8, salt="mine")
    assert cache.lookup(cache.open("yours"), [1] * 8) == []


def test_hit_blocks_that_are_free_count_against_the_free_ones() -> None:
    cache = manager(num_blocks=5)
    cache.free(run(cache, [1] * 8))
    run(cache, [2] * 8)
    blocks = cache.open("")
    hit = cache.lookup(blocks, [1] * 12)
    assert len(hit) == 2
    assert cache.num_free_blocks == 2
    assert not cache.allocate(blocks, 12, hit)
    assert cache.allocate(blocks, 8, hit)


def test_a_freed_table_is_replaced_so_that_a_plan_may_still_look_at_it() -> None:
    cache = manager()
    blocks = run(cache, [1] * 8)
    ids = blocks.ids
    cache.free(blocks)
    assert len(ids) == 2
    assert blocks.ids == []


def test_without_prefix_caching_nothing_is_hashed_or_found() -> None:
    cache = manager(enable_prefix_caching=False)
    blocks = run(cache, [1] * 8)
    assert blocks.chain.digests == []
    assert cache.lookup(cache.open(""), [1] * 8) == []


def test_a_long_sequence_holds_no_more_than_its_window_and_a_block() -> None:
    cache = manager(num_blocks=5, window=6)
    blocks, tokens = cache.open(""), list(range(40))
    for length in range(1, 41):
        assert cache.allocate(blocks, length)
        cache.commit(blocks, tokens, length)
        cache.drop(blocks, length)
    assert blocks.ids[: blocks.num_dropped] == [NULL_BLOCK] * 8
    assert cache.num_free_blocks == 2
    cache.free(blocks)
    assert cache.num_free_blocks == 4


def test_a_prefix_is_found_by_the_blocks_that_its_next_token_sees() -> None:
    cache = manager(window=6)
    tokens = list(range(24))
    blocks = run(cache, tokens)
    cache.drop(blocks, 24)
    kept = blocks.ids[4:]
    cache.free(blocks)
    for _ in range(cache.num_free_blocks - len(kept)):
        cache.pool.take()  # what was given back first is reused first
    assert cache.lookup(cache.open(""), [*tokens, 1]) == [NULL_BLOCK] * 4 + kept
    assert cache.lookup(cache.open(""), tokens[:20]) == []
