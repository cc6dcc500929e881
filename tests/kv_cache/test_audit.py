"""The audit sees each kind of broken book."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neuronserve.server.config import CacheConfig
from neuronserve.server.kv_cache.audit import audit
from neuronserve.server.kv_cache.blocks import NULL_BLOCK
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.kv_cache.sequence_blocks import SequenceBlocks

Books = tuple[KVCacheManager, SequenceBlocks]


@pytest.fixture
def books() -> Books:
    """Six blocks: one sequence holds two, one of them named; one free block is named too."""
    cache = KVCacheManager(CacheConfig(num_blocks=7, block_size=2), copy=lambda *_: None)
    gone, blocks = cache.open("gone"), cache.open("")
    for table in (gone, blocks):
        assert cache.allocate(table, 3)
        cache.commit(table, [1, 2, 3], 3)
    cache.free(gone)
    assert audit(cache, [blocks]) == []
    return cache, blocks


def lose(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    blocks.tables[0].pop()


def hold_a_free_one(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    blocks.tables[0].append(next(cache.pool.free_blocks()))


def hold_null(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    blocks.tables[0].append(NULL_BLOCK)


def hold_twice(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    blocks.tables[0].append(blocks.tables[0][0])


def miscount(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    cache.pool.ref_counts[blocks.tables[0][0]] += 1


def misreport(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    cache.pool.num_free += 1


def misname(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    cache.pool.cached[b"stale"] = blocks.tables[0][1]


def name_too_many(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    blocks.num_named = 3


def name_out_of_order(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    first = next(cache.pool.free_blocks())
    cache.pool.digests[first] = b"x"
    cache.pool.cached[b"x"] = first


def forget_a_sharer(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    cache.num_reserved += 1


def hold_a_part(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    cache.pool.parts.add(blocks.tables[0][0])


def lose_the_index(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    assert cache.finder.parts is not None
    cache.finder.parts._after.clear()


def cover_too_little(cache: KVCacheManager, blocks: SequenceBlocks) -> None:
    blocks.num_blocks += 1


@pytest.mark.parametrize(
    ("break_them", "complaint"),
    [
        (lose, "free + held is not all"),
        (hold_a_free_one, "both free and held"),
        (hold_null, "null block"),
        (hold_twice, "holds a block twice"),
        (miscount, "has count 2 and is held by 1"),
        (misreport, "the free list has"),
        (misname, "disagree"),
        (name_too_many, "more blocks are named"),
        (name_out_of_order, "reused before"),
        (forget_a_sharer, "blocks are reserved, not"),
        (hold_a_part, "not full is cached and held"),
        (lose_the_index, "the index of parts"),
        (cover_too_little, "does not cover what it should"),
    ],
)
def test_a_broken_book_is_named(
    books: Books, break_them: Callable[[KVCacheManager, SequenceBlocks], None], complaint: str
) -> None:
    break_them(*books)
    assert any(complaint in problem for problem in audit(books[0], [books[1]]))


def test_a_table_that_nobody_mentions_is_a_leak(books: Books) -> None:
    assert any("free + held is not all" in problem for problem in audit(books[0], []))
