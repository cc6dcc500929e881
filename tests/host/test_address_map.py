"""Ranges of memory by name: the innermost is found, and none outlives its memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from neuronserve.server.device.core import NeuronCore
from neuronserve.server.host.address_map import ADDRESSES, AddressMap


def name_at(addresses: AddressMap, address: int) -> str | None:
    found = addresses.find(address)
    return None if found is None else found.name


def test_the_innermost_range_is_found_up_to_its_last_byte() -> None:
    addresses, pool = AddressMap(), np.zeros(100, np.uint8)
    begin = int(pool.ctypes.data)
    for name, part in (("inner", pool[20:40]), ("pool", pool), ("head", pool[:10])):
        addresses.register(name, part)
    names = [name_at(addresses, begin + offset) for offset in (-1, 0, 9, 10, 19, 20, 39, 40, 99, 100)]
    assert names == [None, "head", "head", "pool", "pool", "inner", "inner", "pool", "pool", None]


def test_nothing_is_entered_for_no_bytes() -> None:
    addresses = AddressMap()
    addresses.register("empty", np.zeros(0, np.int32))
    assert addresses.ranges == []
    assert addresses.find(0) is None


@pytest.mark.slow
def test_a_range_lives_as_long_as_the_memory_not_as_the_view() -> None:
    addresses, memory = AddressMap(), np.zeros(64, np.uint8)
    begin, version = int(memory.ctypes.data), addresses.version
    addresses.register("words", memory.view(np.int64)[2:4])
    gc.collect()
    assert name_at(addresses, begin + 16) == "words"
    assert addresses.version != version
    version = addresses.version
    del memory
    gc.collect()
    assert addresses.find(begin + 16) is None
    assert addresses.version != version


def test_arrays_of_an_object_are_entered_under_their_names() -> None:
    class Inputs:
        def __init__(self) -> None:
            self.token_ids, self._counters, self.size = np.zeros(4, np.int32), np.zeros(2, np.int64), 4

    addresses, inputs = AddressMap(), Inputs()
    addresses.register_attributes("step", inputs)
    assert sorted(each.name for each in addresses.ranges) == ["step counters", "step token_ids"]


def test_each_reservation_of_a_core_is_a_range() -> None:
    core = NeuronCore(0)
    first, second = core.allocate("weights", "lm_head", 100), core.allocate("kv", "blocks", 64)
    assert [name_at(ADDRESSES, b.address) for b in (first, second)] == ["weights lm_head", "kv blocks"]
    assert ADDRESSES.find(first.address + 100) is None
