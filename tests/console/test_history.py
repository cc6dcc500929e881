"""The history of the pages, as pure records."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.console.history import NUM_BINS, StepHistory, Totals, TotalsHistory
from neuronserve.server.cost.charge_rate import ChargeRate
from neuronserve.server.device.catalog import instance
from neuronserve.server.engine.housekeeping import block_map
from neuronserve.server.kv_cache.blocks import BlockPool
from neuronserve.server.kv_cache.hashing import Blob
from neuronserve.server.link.messages import BlockMap
from neuronserve.server.types import DeviceStep, StepReport

REPORT = StepReport(1, 0.0, 0.0, 1, 0, 5, 3, (), (), 1, 2, 0, 0, 0.0, DeviceStep(40, 30, 0, None, 0, 7, 2))


@given(st.lists(st.integers(0, 2000), min_size=1).map(sorted))
def test_bins_hold_each_step_of_the_last_minute_once(tenths: list[int]) -> None:
    history = StepHistory()
    for tenth in tenths:
        history.add(REPORT._replace(time=tenth / 10 + 0.05))
    found = list(history.since(0))
    assert [each.number for each in found] == sorted({*tenths})[-NUM_BINS:]
    assert sum(each.num_steps for each in found) == sum(tenth >= found[0].number for tenth in tenths)
    assert all(each.row(2)[3:] == [n * each.num_steps for n in (5, 3, 7, 2, 40, 30)] for each in found)
    assert list(history.since(tenths[-1])) == found[-1:]


def test_a_window_begins_at_the_last_sample_before_it() -> None:
    history = TotalsHistory(Totals(0.0, 0, 0, 0, 0, 0))
    for second in range(10, 400, 10):
        assert history.is_due(float(second))
        history.add(Totals(float(second), second, 0, 0, 0, second))
    assert not history.is_due(395.0)
    assert history.before(333.0).time_s == 330.0
    assert history.before(-5.0).time_s == 0.0


def test_dollars_are_all_that_the_instance_costs() -> None:
    rate = ChargeRate.of(instance("inf2.xlarge"), 1, "on_demand", usd_per_hour=3.6)
    cost = Totals(1000.0, int(250e9), int(750e9), 600, 200, 200).cost(rate)
    dollars = cost["busy_usd"] + cost["idle_usd"] + cost["unused_cores_usd"]
    assert abs(dollars - 1.0) < 1e-9  # 1,000 s at 3.6 dollars an hour
    assert abs(cost["usd_per_million"] - 1000.0) < 1e-6
    assert abs(cost["usd_per_million_output"] - 5000.0) < 1e-6
    assert Totals(1.0, 1, 1, 0, 0, 0).cost(rate)["usd_per_million"] is None
    assert Totals(1.0, 1, 1, 1, 0, 0).cost(replace(rate, usd_per_hour=None))["usd_per_million"] is None


@given(st.lists(st.integers(0, 6), max_size=8), st.integers(0, 3), st.integers(0, 4))
def test_the_map_says_of_each_block_whose_it_is(sizes: list[int], num_shared: int, num_cached: int) -> None:
    pool = BlockPool(64)
    shared = [pool.take() for _ in range(num_shared)]
    tables = {f"seq-{i}": [*shared, *(pool.take() for _ in range(size))] for i, size in enumerate(sizes)}
    for _ in sizes:
        for block in shared:
            pool.hold(block)
    cached = [pool.take() for _ in range(num_cached)]
    for block in cached:
        pool.name(block, Blob(bytes([block]), b""))
        pool.release(block)
    found = block_map(pool, tables)
    owners = [owner for length, owner in found.runs for _ in range(length)]
    assert len(owners) == pool.num_blocks - 1
    assert all(left[1] != right[1] for left, right in zip(found.runs, found.runs[1:], strict=False))
    for i, (name, table) in enumerate(tables.items()):
        assert found.owners[i] == name
        assert all(owners[block - 1] == BlockMap.FIRST_OWNER + i for block in table[num_shared:])
    assert all(owners[block - 1] == BlockMap.CACHED for block in cached)
    if sizes:
        assert all(owners[block - 1] == BlockMap.SHARED for block in shared)
