"""The pool: order of reuse, counts, and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.kv_cache.blocks import FIRST_SHARE, NULL_BLOCK, BlockPool
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


def computed(pool: BlockPool, digest: bytes) -> None:
    """Cache a block of a sequence that ends at once."""
    pool.release(named(pool, digest))


def test_prefixes_that_nobody_asks_for_again_take_no_further_blocks() -> None:
    pool = BlockPool(161, grows=True)
    for i in range(1000):
        computed(pool, b"%d" % i)
    assert pool.num_used == pool.num_kept + 1 == 161 // FIRST_SHARE + 1
    assert list(pool.cached) == [b"%d" % i for i in range(1000 - pool.num_used, 1000)]  # the youngest


def test_prefixes_that_are_computed_again_get_blocks_until_all_stay() -> None:
    pool, prompts, counts = BlockPool(161, grows=True), [b"%d" % i for i in range(100)], list[int]()
    for _ in range(4):
        missing = [each for each in prompts if each not in pool.cached]
        for each in missing:
            computed(pool, each)
        counts.append(len(missing))
    assert counts[0] == 100
    assert 0 < counts[1] <= 100
    assert counts[3] == 0
    assert pool.num_used <= 100


def test_blocks_in_use_do_not_count_as_kept() -> None:
    pool = BlockPool(161, grows=True)
    held = [named(pool, b"%d" % i) for i in range(100)]
    assert held == [*range(1, 101)]  # by address
    for block in held[:50]:
        pool.release(block)
    assert pool.take() == held[0]  # 50 are more than may be kept


def test_forgotten_prefixes_leave_their_blocks_to_the_next_sequences() -> None:
    pool = BlockPool(161, grows=True)
    for i in range(20):
        computed(pool, b"%d" % i)
    pool.forget_all()
    assert {pool.take() for _ in range(20)} == {*range(1, 21)}
    assert pool.take() == 21


@given(st.lists(st.integers(0, 40), max_size=200), st.integers(2, 30))
def test_a_pool_that_grows_hands_out_every_block_and_each_once(digests: list[int], num_blocks: int) -> None:
    pool = BlockPool(num_blocks, grows=True)
    for each in digests:
        if (digest := b"%d" % each) in pool.cached:
            block = pool.cached[digest]
            pool.hold(block)
            pool.release(block)
        else:
            computed(pool, digest)
    assert sorted(pool.take() for _ in range(num_blocks - 1)) == [*range(1, num_blocks)]
