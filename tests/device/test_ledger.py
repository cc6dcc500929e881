"""The account of each core's memory: it always adds up, and a refusal changes nothing and tells everything."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.device.catalog import instance
from neuronserve.server.device.ledger import MIB, USES, MemoryLedger, Use, account_table
from neuronserve.server.errors import DeviceMemoryError
from neuronserve.server.host.memory import GIB

CAPACITY = 1000
CORES = 3

Wish = tuple[int, Use, str, int]
wishes = st.lists(
    st.tuples(st.integers(0, CORES - 1), st.sampled_from(USES), st.sampled_from("abc"), st.integers(0, 700)),
    max_size=30,
)


def snapshot(ledger: MemoryLedger) -> list[object]:
    cores = range(ledger.num_cores)
    return [(dict(ledger.entries(core)), ledger.reserved_bytes(core), ledger.free_bytes(core)) for core in cores]


@given(wishes, st.floats(0.1, 1.0))
def test_reserved_and_free_always_add_up_to_the_budget(asked: list[Wish], utilization: float) -> None:
    ledger = MemoryLedger(CAPACITY, CORES, 2, utilization)
    granted: dict[tuple[int, Use, str], int] = {}
    for core, use, name, num_bytes in asked:
        left = ledger.free_bytes(core)
        before = snapshot(ledger)
        if num_bytes > left:
            with pytest.raises(DeviceMemoryError):
                ledger.reserve(core, use, name, num_bytes)
            assert snapshot(ledger) == before
        else:
            ledger.reserve(core, use, name, num_bytes)
            granted[core, use, name] = granted.get((core, use, name), 0) + num_bytes
    for core in range(CORES):
        assert ledger.reserved_bytes(core) + ledger.free_bytes(core) == ledger.budget_bytes <= CAPACITY
        assert ledger.free_bytes(core) >= 0
        assert ledger.reserved_bytes(core) == sum(ledger.reserved_bytes(core, use) for use in USES)
        assert dict(ledger.entries(core)) == {(u, n): b for (c, u, n), b in granted.items() if c == core}
        for use in USES:
            assert ledger.reserved_bytes(core, use) == sum(b for (u, _), b in ledger.entries(core).items() if u == use)


def test_the_last_byte_of_the_budget_can_be_reserved_and_no_more() -> None:
    ledger = MemoryLedger(CAPACITY, 1, 1, utilization=0.9)
    ledger.reserve(0, "weights", "layer 0", 900)
    assert ledger.free_bytes(0) == 0
    ledger.reserve(0, "kv", "nothing", 0)
    with pytest.raises(DeviceMemoryError):
        ledger.reserve(0, "kv", "pool", 1)


def test_the_same_name_grows_and_other_uses_of_it_stand_apart() -> None:
    ledger = MemoryLedger(CAPACITY, 1, 1)
    for use, num_bytes in (("weights", 10), ("weights", 5), ("kv", 1)):
        ledger.reserve(0, use, "x", num_bytes)
    assert dict(ledger.entries(0)) == {("weights", "x"): 15, ("kv", "x"): 1}


def test_cores_do_not_lend_to_each_other() -> None:
    ledger = MemoryLedger(CAPACITY, 2, 2)
    ledger.reserve(0, "weights", "all of it", CAPACITY)
    assert ledger.free_bytes(1) == CAPACITY
    with pytest.raises(DeviceMemoryError):
        ledger.reserve(0, "kv", "pool", 1)


def test_a_negative_reservation_is_our_own_mistake_and_changes_nothing() -> None:
    ledger = MemoryLedger(CAPACITY, 1, 1)
    before = snapshot(ledger)
    with pytest.raises(ValueError, match="-1 bytes for pool"):
        ledger.reserve(0, "kv", "pool", -1)
    assert snapshot(ledger) == before


def test_a_refusal_names_what_was_asked_for_where_what_is_free_and_who_holds_the_rest() -> None:
    part = instance("inf2.24xlarge")
    ledger = MemoryLedger(part.core_memory_bytes, 4, part.chip.cores_per_chip, utilization=0.5)
    ledger.reserve(3, "weights", "layers.0.qkv", 5 * GIB)
    ledger.reserve(3, "runtime", "runtime", 512 * MIB)
    with pytest.raises(DeviceMemoryError) as refusal:
        ledger.reserve(3, "kv", "pool", 3 * GIB)
    first, head, *rows = str(refusal.value).splitlines()
    assert first == (
        "NRT_RESOURCE (4): Failed to allocate 3.000GB (usage: kv, pool) on ND 1:NC 1: 2.500GB free of 8.000GB"
    )
    assert head.split() == ["core", *USES, "budget", "free", "(MiB)"]
    assert [row[:9] for row in rows] == ["ND 0:NC 0", "ND 0:NC 1", "ND 1:NC 0", "ND 1:NC 1"]
    assert rows[3][9:].split() == ["5,120.0", *["0.0"] * 5, "512.0", "8,192.0", "2,560.0"]
    assert rows[0][9:].split() == ["0.0"] * 7 + ["8,192.0", "8,192.0"]


@pytest.mark.parametrize(
    ("name", "core", "shown"),
    [
        ("inf1.6xlarge", 0, "ND 0:NC 0"),
        ("inf1.6xlarge", 15, "ND 3:NC 3"),
        ("inf2.48xlarge", 23, "ND 11:NC 1"),
    ],
)
def test_cores_are_named_by_chip_as_the_runtime_names_them(name: str, core: int, shown: str) -> None:
    part = instance(name)
    ledger = MemoryLedger(part.core_memory_bytes, part.num_cores, part.chip.cores_per_chip)
    assert ledger.core_name(core) == shown


@given(wishes)
def test_the_printed_account_adds_up(asked: list[Wish]) -> None:
    """A reader who adds the columns must get the budget; figures here are whole MiB, so nothing is rounded away."""
    ledger = MemoryLedger(CAPACITY * MIB, CORES, 2)
    for core, use, name, mebibytes in asked:
        if mebibytes * MIB <= ledger.free_bytes(core):
            ledger.reserve(core, use, name, mebibytes * MIB)
    for row in ledger.account().splitlines()[1:]:
        *uses, budget, free = (float(n.replace(",", "")) for n in row[9:].split())
        assert sum(uses) + free == budget == CAPACITY


def test_an_account_over_budget_shows_what_is_missing_as_negative() -> None:
    row = account_table([("ND 0:NC 0", {"weights": 3 * MIB}, 2 * MIB)]).splitlines()[1]
    assert re.search(r" 2\.0 +-1\.0$", row)
