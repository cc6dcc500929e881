"""The manager against a shadow of what was really computed into each block."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neuronserve.server.config import AttentionSpan, CacheConfig
from neuronserve.server.kv_cache.audit import audit
from neuronserve.server.kv_cache.blocks import NULL_BLOCK
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.kv_cache.sequence_blocks import Prefix, SequenceBlocks
from neuronserve.server.kv_cache.state_slots import TO_LOAD
from neuronserve.server.types import MediaItem
from tests.tier_stores import TOKEN_S, TestedTiers, press

BLOCK = 4
FULL, SLIDING = AttentionSpan(), AttentionSpan(6)


def manager(
    num_blocks: int = 9,
    *groups: AttentionSpan,
    enable_prefix_caching: bool = True,
    max_chunk: int = 6,
) -> KVCacheManager:
    return KVCacheManager(CacheConfig(num_blocks, BLOCK, enable_prefix_caching, groups or (FULL,), max_chunk))


def run(cache: KVCacheManager, tokens: list[int], salt: str = "") -> SequenceBlocks:
    """A sequence whose tokens are all computed, one at a time."""
    blocks = cache.open(salt)
    prefix = cache.lookup(blocks, tokens)
    assert cache.allocate(blocks, len(tokens), prefix)
    for length in range(prefix.num_blocks * BLOCK + 1, len(tokens) + 1):
        cache.commit(blocks, tokens, length)
        cache.drop(blocks, length)
    return blocks


def found(cache: KVCacheManager, tokens: list[int], salt: str = "") -> int:
    """Blocks of the prefix of a new sequence."""
    return cache.lookup(cache.open(salt), tokens).num_blocks


def snapshot(cache: KVCacheManager) -> dict[str, Any]:
    books = {name: value for name, value in vars(cache.pool).items() if name not in {"tiers", "observers"}}
    return copy.deepcopy(books) | {"reserved": cache.num_reserved}


Scope = tuple[str, str, tuple[MediaItem, ...]]  # salt, adapter and pictures
PLAIN: Scope = ("", "", ())
SCOPES: tuple[Scope, ...] = (*[PLAIN] * 4, ("s", "", ()), ("", "a", ()), ("", "", (MediaItem(b"p", 2, 1, b"", ()),)))
Written = tuple[int, Scope, list[int]]  # group, scope and prefix that a block holds


class Contents:
    """What was written, as bytes. Implements neuronserve.server.engine.blob_file.BlobBytes."""

    num_bytes = 8

    def __init__(self, written: dict[int, Written]) -> None:
        self._written, self._all = written, list[Written]()

    def read(self, place: int) -> npt.NDArray[np.uint8]:
        self._all.append(self._written[place])
        return np.array([len(self._all) - 1]).view(np.uint8)

    def copy(self, source: int, target: int) -> None:
        self._written[target] = self._written[source]

    def write(self, place: int, content: npt.NDArray[np.uint8]) -> None:
        self._written[place] = self._all[int(content.view(np.int64)[0])]


prompts = st.builds(lambda n, tail: [1] * n + tail, st.integers(1, 20), st.lists(st.integers(0, 1), max_size=4))


class Open:
    """A sequence, of whose tokens the first so many are computed."""

    def __init__(self, blocks: SequenceBlocks, scope: Scope, tokens: list[int], num_computed: int) -> None:
        self.blocks, self.scope, self.tokens, self.num_computed = blocks, scope, tokens, num_computed


class Books(RuleBasedStateMachine):
    """Sequences over a tiny alphabet, so that prefixes meet often, in a tiny cache, so that they are evicted.

    The plain model that they are held against is what was written into each block.
    """

    groups: tuple[AttentionSpan, ...] = (FULL,)
    num_blocks = 9
    grows = False
    tiers = 4, 6

    def __init__(self) -> None:
        super().__init__()
        self.is_damaged = False
        self.open: list[Open] = []
        self.written: dict[int, Written] = {}  # by block
        contents = Contents(self.written)
        self.tested = TestedTiers(contents, BLOCK, self.tiers, num_mirrors=2)
        config = dataclasses.replace(manager(self.num_blocks, *self.groups).config, grows=self.grows)
        self.cache = KVCacheManager(config, self.tested.tiers, copy=contents.copy)
        self.log, self.followed = self.cache.follow(), set[tuple[str, int, int]]()
        self.published = set[tuple[str, int, int]]()  # all that was on the device some time

    @rule(
        tokens=st.one_of(st.lists(st.integers(0, 1), min_size=1, max_size=24), prompts),
        scope=st.sampled_from(SCOPES),
        num_growing=st.integers(0, 3),
    )
    def start(self, tokens: list[int], scope: Scope, num_growing: int) -> None:
        blocks = self.cache.open(*scope)
        before = snapshot(self.cache)
        prefix = self.cache.lookup(blocks, tokens)
        start = self.cache.num_tokens(prefix)
        assert start < len(tokens)
        for span, table in zip(self.groups, prefix.tables, strict=False):
            assert len(table) == prefix.num_blocks
            assert [block == NULL_BLOCK for block in table] == [
                (i + 1) * BLOCK <= span.num_behind(start) for i in range(len(table))
            ]
        assert snapshot(self.cache) == before
        if self.cache.allocate(blocks, len(tokens), prefix, num_growing):
            if not self.cache.load(blocks, tokens, prefix):
                # Blocks that make room on the device may push out the copies that were to be loaded.
                is_crowded = sum(map(len, blocks.tables)) > self.tiers[0]
                assert self.is_damaged or is_crowded, "a whole copy was refused"
                self.cache.free(blocks)
                return
            event(f"loaded={any(block == TO_LOAD for table in prefix.tables for block in table)}")
            event(f"part={prefix.part is not None}")
            assert self.cache.num_free_blocks >= num_growing * len(self.groups)
            self.open.append(Open(blocks, scope, tokens, start))
        else:
            assert snapshot(self.cache) == before
            assert not any(blocks.tables)

    @precondition(lambda self: any(seq.num_computed < len(seq.tokens) for seq in self.open))
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """Compute a chunk: all blocks that it looks at are there, and it gets its own whatever other sequences hold."""
        seq = data.draw(st.sampled_from([seq for seq in self.open if seq.num_computed < len(seq.tokens)]))
        most = min(self.cache.config.max_chunk, len(seq.tokens) - seq.num_computed)
        self.advance(seq, data.draw(st.integers(1, most)))

    def advance(self, seq: Open, num_tokens: int) -> None:
        start = seq.num_computed
        seq.num_computed = end = start + num_tokens
        for group, (span, table) in enumerate(zip(self.groups, seq.blocks.tables, strict=True)):
            for position in range(span.num_behind(start), start):
                known = group, seq.scope, seq.tokens[: position + 1]
                wrote = self.written[table[position // BLOCK]]
                assert (*wrote[:2], wrote[2][: position + 1]) == known
            for position in range(start, end):
                assert table[position // BLOCK] != NULL_BLOCK
                self.written[table[position // BLOCK]] = (group, seq.scope, seq.tokens[: position + 1])
        self.cache.commit(seq.blocks, seq.tokens, end)
        self.cache.drop(seq.blocks, end)
        assert seq.blocks.num_dropped == [span.num_behind(end) // BLOCK for span in self.groups]

    @precondition(lambda self: any(seq.num_computed == len(seq.tokens) for seq in self.open))
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def grow(self, data: st.DataObject, more: list[int]) -> None:
        seq = data.draw(st.sampled_from([seq for seq in self.open if seq.num_computed == len(seq.tokens)]))
        before, old = snapshot(self.cache), copy.deepcopy(seq.blocks.tables)
        if self.cache.allocate(seq.blocks, len(seq.tokens) + len(more)):
            for table, was in zip(seq.blocks.tables, old, strict=True):
                assert table[: len(was)] == was
            seq.tokens = seq.tokens + more
        else:
            assert (snapshot(self.cache), seq.blocks.tables) == (before, old)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), is_broken=st.booleans())
    def end(self, data: st.DataObject, is_broken: bool) -> None:
        seq = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        ids = {block for table in seq.blocks.tables for block in table}
        if is_broken:
            self.cache.discard(seq.blocks)
        else:
            self.cache.free(seq.blocks, seq.tokens, seq.num_computed)
        assert not is_broken or not ids & set(self.cache.pool.cached.values())

    @rule(tokens=prompts, count=st.one_of(st.just(0), st.integers(1, 27)), scope=st.sampled_from(SCOPES))
    def come_and_go(self, tokens: list[int], count: int, scope: Scope) -> None:
        """A sequence is computed whole and ends; then the device needs some of its blocks."""
        num_open, num_tokens = len(self.open), len(tokens)
        self.start(tokens=tokens, scope=scope, num_growing=0)
        for seq in self.open[num_open:]:
            while seq.num_computed < num_tokens:
                self.advance(seq, min(self.cache.config.max_chunk, num_tokens - seq.num_computed))
            self.cache.free(self.open.pop().blocks, seq.tokens, num_tokens)
            press(self.cache.pool, min(count, self.cache.num_free_blocks))

    @rule(level=st.integers(0, 1), at=st.integers(0, 700))
    def damage(self, level: int, at: int) -> None:
        self.is_damaged = True
        self.tested.damage(level, at)

    @rule(token_s=st.sampled_from([TOKEN_S, 0.0]))
    def predict(self, token_s: float) -> None:
        self.tested.tiers.rate.token_s = token_s

    @rule()
    def reset(self) -> None:
        self.cache.reset_prefix_cache()
        assert not self.cache.pool.cached

    @invariant()
    def books_balance(self) -> None:
        assert audit(self.cache, [seq.blocks for seq in self.open]) == []

    @invariant()
    def who_follows_the_log_knows_what_is_cached(self) -> None:
        for logged in self.log.events:
            blocks = {(logged["medium"], logged["group_idx"], each) for each in logged.get("block_hashes", ())}
            match logged["type"]:
                case "AllBlocksCleared":
                    self.followed.clear()
                case "BlockRemoved":
                    assert blocks <= self.followed
                    self.followed -= blocks
                case "BlockStored":
                    assert not blocks & self.followed
                    self.published |= {each for each in blocks if each[0] == "GPU"}
                    assert {("GPU", *each[1:]) for each in blocks} <= self.published, "a copy of what nobody has seen"
                    assert len(logged["token_ids"]) == len(blocks) * BLOCK * (logged["medium"] == "GPU")
                    self.followed |= blocks
        self.log.events.clear()
        first, *others = self.tested.tiers.tiers
        there = {
            "GPU": [name for name, block in self.cache.pool.cached.items() if block not in self.cache.pool.parts],
            first.store.medium: [*first.slots, *self.tested.tiers.mirrors],
            **{tier.store.medium: [*tier.slots] for tier in others},
        }
        assert self.followed == {
            (medium, name[32] if len(name) > 32 else 0, int.from_bytes(name[:8], "big"))
            for medium, names in there.items()
            for name in names
        }

    @invariant()
    def usage_is_the_share_held(self) -> None:
        held = {block for seq in self.open for table in seq.blocks.tables for block in table} - {NULL_BLOCK}
        assert abs(self.cache.usage - len(held) / (self.num_blocks - 1)) < 1e-9

    @invariant()
    def a_sequence_holds_what_it_may(self) -> None:
        for seq in self.open:
            held = sum(block != NULL_BLOCK for table in seq.blocks.tables for block in table)
            assert held <= self.cache.config.blocks_of(len(seq.tokens))


Books.TestCase.settings = settings(stateful_step_count=40)
TestBooks = Books.TestCase


class SlidingBooks(Books):
    """Check prefixes when every layer has a window of a block and a half."""

    groups = (SLIDING,)


class AlternatingBooks(Books):
    """Full attention, two groups with a window, and one with another."""

    groups = (FULL, AttentionSpan(9), SLIDING, SLIDING)
    num_blocks = 27


class ChunkedBooks(Books):
    """Chunks beside full attention, and prefixes that are evicted while there are unused blocks."""

    groups = (FULL, AttentionSpan(6, is_chunked=True))
    num_blocks = 17
    grows = True


for _each in (SlidingBooks, AlternatingBooks, ChunkedBooks):
    _each.TestCase.settings = settings(stateful_step_count=40)
TestSlidingBooks = SlidingBooks.TestCase
TestAlternatingBooks = AlternatingBooks.TestCase
TestChunkedBooks = ChunkedBooks.TestCase


def test_a_prompt_that_is_cached_whole_still_computes_its_last_block() -> None:
    cache = manager()
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    cache.free(run(cache, tokens))
    assert found(cache, tokens) == 1
    assert found(cache, [*tokens, 9]) == 2


def test_a_chain_is_evicted_from_its_tail() -> None:
    cache = manager(5)
    chain = run(cache, list(range(16)))
    ids = list(chain.tables[0])
    cache.free(chain)
    run(cache, [99] * 4)
    assert cache.lookup(cache.open(""), list(range(16))) == Prefix(3, (ids[:3],), num_own=3)


def test_only_computed_tokens_are_cached() -> None:
    cache = manager()
    blocks, tokens = cache.open(""), list(range(12))
    assert cache.allocate(blocks, 12)
    cache.commit(blocks, tokens, 7)
    assert found(cache, tokens) == 1
    cache.commit(blocks, tokens, 8)
    assert found(cache, tokens) == 2


def test_sequences_with_the_same_prefix_hold_the_same_blocks() -> None:
    cache = manager()
    (first,), (second,) = run(cache, [1] * 8).tables, run(cache, [1] * 9).tables
    assert first == second[:2]
    assert cache.num_free_blocks == 8 - 3


def test_another_salt_shares_nothing() -> None:
    cache = manager()
    run(cache, [1] * 8, salt="mine")
    assert found(cache, [1] * 8, salt="yours") == 0


def test_hit_blocks_that_are_free_count_against_the_free_ones() -> None:
    cache = manager(5)
    cache.free(run(cache, [1] * 8))
    run(cache, [2] * 8)
    blocks = cache.open("")
    prefix = cache.lookup(blocks, [1] * 12)
    assert prefix.num_blocks == 2
    assert cache.num_free_blocks == 2
    assert not cache.allocate(blocks, 12, prefix)
    assert cache.allocate(blocks, 8, prefix)


def test_a_freed_table_is_replaced_so_that_a_plan_may_still_look_at_it() -> None:
    cache = manager()
    blocks = run(cache, [1] * 8)
    (ids,) = blocks.tables
    cache.free(blocks)
    assert len(ids) == 2
    assert blocks.tables == ([],)


def test_without_prefix_caching_nothing_is_hashed_or_found() -> None:
    cache = manager(enable_prefix_caching=False)
    blocks = run(cache, [1] * 8)
    assert blocks.chain.digests == []
    assert found(cache, [1] * 8) == 0


def test_a_long_sequence_holds_no_more_than_its_window_and_a_chunk() -> None:
    cache = manager(5, SLIDING, max_chunk=4)
    blocks = run(cache, list(range(40)))
    assert blocks.tables[0][: blocks.num_dropped[0]] == [NULL_BLOCK] * 8
    assert cache.num_free_blocks == 2
    cache.free(blocks)
    assert cache.num_free_blocks == 4


def test_a_prefix_is_found_by_the_blocks_that_its_next_token_sees() -> None:
    cache = manager(9, SLIDING)
    tokens = list(range(24))
    blocks = run(cache, tokens)
    kept = blocks.tables[0][4:]
    cache.free(blocks)
    for _ in range(cache.num_free_blocks - len(kept)):
        cache.pool.take()  # what was given back first is reused first
    assert cache.lookup(cache.open(""), [*tokens, 1]) == Prefix(6, ([NULL_BLOCK] * 4 + kept,), num_own=6)
    assert found(cache, tokens[:20]) == 0


def test_a_prefix_must_be_there_in_every_group() -> None:
    cache = manager(17, FULL, SLIDING)
    tokens = list(range(24))
    cache.free(run(cache, tokens))
    assert cache.lookup(cache.open(""), [*tokens, 1]).num_blocks == 6
    full = [block for block, digest in enumerate(cache.pool.digests) if digest is not None and len(digest) == 32]
    sliding = [block for block, digest in enumerate(cache.pool.digests) if digest is not None and len(digest) == 33]
    assert len(full) == 6 >= len(sliding) >= 3
    last = cache.lookup(cache.open(""), [*tokens, 1]).tables[1][-1]
    cache.pool.forget(last)  # the token after block 5 sees blocks 3 and 4, that after block 6 this one too
    assert found(cache, [*tokens, 1]) == 5
    cache.pool.forget(full[0])
    assert found(cache, [*tokens, 1]) == 0


def test_a_table_that_shares_what_it_sees_still_gets_a_block_for_each_that_it_gives_back() -> None:
    cache = manager(10, SLIDING)
    tokens = list(range(8))
    first = run(cache, tokens)
    second = cache.open("")
    prefix = cache.lookup(second, [*tokens, *range(50, 74)])
    assert cache.allocate(second, 32, prefix)
    assert prefix.tables[0][0] == first.tables[0][0] != NULL_BLOCK  # which both hold
    assert cache.num_reserved == 2
    filler = cache.open("filler")
    assert cache.allocate(filler, cache.num_free_blocks * BLOCK)
    assert cache.num_free_blocks == 0
    for length in range(9, 33):
        cache.drop(second, length)
        assert audit(cache, [first, second, filler]) == []
    assert len(second.tables[0]) == 8
