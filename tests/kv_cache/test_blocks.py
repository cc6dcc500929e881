"""The pool: order of reuse, counts, and names."""

from __future__ import annotations

import pytest

from neuronserve.server.kv_cache.blocks import NULL_BLOCK, BlockPool
from neuronserve.server.kv_cache.hashing import Blob


def named(pool: BlockPool, digest: bytes) -> int:
    block = pool.take()
    pool.name(block, Blob(digest, b""))
    return block


def test_every_block_but_the_null_block_is_handed_out_once() -> None:
    pool = BlockPool(5)
    assert sorted(pool.take() for _ in range(4)) == [1, 2, 3, 4]
    assert pool.num_free == 0
    assert NULL_BLOCK not in pool.free_blocks()


def test_an_empty_pool_hands_out_nothing() -> None:
    pool = BlockPool(2)
    pool.take()
    with pytest.raises(AssertionError, match="no free block"):
        pool.take()


def test_a_pool_without_a_usable_block_is_refused_with_its_size() -> None:
    with pytest.raises(ValueError, match="not 1 blocks"):
        BlockPool(1)


def test_unnamed_blocks_are_reused_before_named_ones_and_those_least_recently_freed_first() -> None:
    pool = BlockPool(6)
    old, young = named(pool, b"old"), named(pool, b"young")
    plain = pool.take()
    for block in (old, young, plain):
        pool.release(block)
    order = list(pool.free_blocks())
    assert order[0] == plain
    assert order[-2:] == [old, young]


def test_a_reused_block_no_longer_answers_for_its_old_prefix() -> None:
    pool = BlockPool(2)
    block = named(pool, b"prefix")
    pool.release(block)
    assert pool.cached == {b"prefix": block}
    assert pool.take() == block
    assert pool.cached == {}


def test_a_free_block_is_revived_from_the_middle_of_the_free_list() -> None:
    pool = BlockPool(5)
    blocks = [named(pool, bytes([i])) for i in range(4)]
    for block in blocks:
        pool.release(block)
    pool.hold(blocks[1])
    assert list(pool.free_blocks()) == [blocks[0], blocks[2], blocks[3]]
    assert pool.num_free == 3
    assert pool.ref_counts[blocks[1]] == 1


def test_a_shared_block_is_freed_by_its_last_holder() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.hold(block)
    pool.release(block)
    assert pool.num_free == 0
    pool.release(block)
    assert pool.num_free == 1
    with pytest.raises(AssertionError, match="not held"):
        pool.release(block)


def test_the_first_block_named_keeps_the_name() -> None:
    pool = BlockPool(3)
    first, second = named(pool, b"same"), named(pool, b"same")
    assert pool.cached == {b"same": first}
    assert pool.digests[second] is None


def test_gains_are_counted_when_a_block_is_let_go_of_or_named_and_not_when_one_is_taken() -> None:
    pool = BlockPool(3)
    block = pool.take()
    assert pool.num_gains == 0
    pool.name(block, Blob(b"x", b""))
    assert pool.num_gains == 1
    pool.hold(block)
    assert pool.num_gains == 1
    pool.release(block)
    pool.release(block)
    assert pool.num_gains == 3
