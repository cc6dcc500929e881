"""Pages of free blocks that go back to the host: which, how many, and that everything else stays."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.device.core import NeuronCore
from neuronserve.server.device.hbm import give_back
from neuronserve.server.engine.buffers import KVPool
from neuronserve.server.host.memory import taken_bytes
from neuronserve.server.placement.kv_groups import KVPlace

NUM_BLOCKS = 24
BLOCK = 2 * mmap.PAGESIZE + 64  # of K, or V, in one layer: most pages are of two blocks


def filled_pool(block_bytes: int = BLOCK) -> KVPool:
    """Two layers on two cores, whose every byte is one."""
    places = tuple(KVPlace(0, slot) for slot in range(2))
    pool = KVPool.allocate([NeuronCore(0), NeuronCore(1)], places, NUM_BLOCKS, (2 * block_bytes, 2))
    for shard in pool.shards:
        shard.bytes[:] = 1
    return pool


@given(st.sets(st.integers(1, NUM_BLOCKS - 1)))
def test_pages_of_free_blocks_are_empty_and_no_byte_of_the_others_has_changed(free: set[int]) -> None:
    pool = filled_pool()
    num_bytes = pool.give_back(list(free))
    assert num_bytes % mmap.PAGESIZE == 0
    num_zeros = 0
    for shard in pool.shards:
        blocks = shard.bytes.reshape(-1, NUM_BLOCKS, BLOCK)
        assert blocks[:, sorted(set(range(NUM_BLOCKS)) - free)].all()
        num_zeros += int((blocks == 0).sum())
    assert num_zeros == num_bytes >= 8 * len(free) * mmap.PAGESIZE  # at least one whole page in each, of K and V


def test_memory_that_was_given_back_is_the_hosts_until_it_is_written_again() -> None:
    pool = filled_pool(2**20)
    full = taken_bytes(os.getpid())
    assert pool.give_back(list(range(1, NUM_BLOCKS))) == 8 * (NUM_BLOCKS - 1) * 2**20
    assert full - taken_bytes(os.getpid()) >= 7 * (NUM_BLOCKS - 1) * 2**20
    pool.shards[0].bytes[2**20] = 7
    assert pool.shards[0].bytes[2**20] == 7


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE - 1])
def test_less_than_a_page_stays(size: int) -> None:
    memory = np.ones(size, np.uint8)
    assert give_back(memory) == 0
    assert memory.all()
