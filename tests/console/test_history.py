"""The history of the pages, as pure records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.console.history import HOUR_S, NUM_BINS, SAMPLE_S, StepHistory, Totals, TotalsHistory
from neuronserve.server.clock import NS
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


NOTHING = Totals(0.0, 0, 0, 0, 0, 0, 0)


def test_the_last_minute_is_a_minute_after_any_pause() -> None:
    """Ten seconds of tokens, then 260 s without a look: only the wall clock and idle time have grown."""
    history, busy = TotalsHistory(NOTHING), Totals(10.0, 10 * NS, 10 * NS, 0, 50, 0, 100)
    for second in range(1, 10):
        history.add(NOTHING.towards(busy, float(second)))
    history.add(busy)
    now = replace(busy, time_s=270.0, wall_ns=270 * NS, idle_ns=260 * NS)
    history.add(now)
    assert now.since(history.at(210.0)) == Totals(60.0, 60 * NS, 0, 60 * NS, 0, 0, 0)
    assert now.since(history.at(5.0)).num_output_tokens == 50
    assert history.at(-5.0) == NOTHING, "a window cannot begin before the server"
    assert history.at(999.0) == now


@given(st.lists(st.floats(0.01, 30.0), max_size=300))
def test_samples_are_of_the_last_hour_and_few(gaps: list[float]) -> None:
    history, now = TotalsHistory(NOTHING), 0.0
    for gap in [*gaps, *[0.01] * 20, *[30.0] * 130]:
        now += gap
        history.add(replace(NOTHING, time_s=now, wall_ns=round(now * NS)))
    times = [sample.time_s for sample in history._samples]
    assert times == sorted(times)
    assert times[-1] == now
    assert times[1] > now - HOUR_S >= times[0]
    assert all(later - before >= SAMPLE_S for before, later in zip(times, times[2:], strict=False))


def test_dollars_are_all_that_the_instance_costs() -> None:
    rate = ChargeRate.of(instance("inf2.xlarge"), 1, "on_demand", usd_per_hour=3.6)
    served = Totals(1000.0, 1000 * NS, 250 * NS, 150 * NS, 600, 200, 200)
    cost = served.cost(rate)
    dollars = sum(cost[f"{part}_usd"] for part in ("busy", "idle", "host", "unused_cores"))
    assert dollars == pytest.approx(1.0)  # 1,000 s at 3.6 dollars an hour
    assert cost["usd"] == pytest.approx(1.0)
    assert cost["usd_per_million_tokens"] == pytest.approx(1000.0)
    assert cost["usd_per_million_output_tokens"] == pytest.approx(5000.0)
    assert cost["modelled_usd_per_million_tokens"] == pytest.approx(125.0)  # a quarter of the time, one of two cores
    assert cost["remark"] == "limited by this host for 60% of the time"
    assert replace(served, busy_ns=1550 * NS).cost(rate)["remark"] == "this host did the work of 1.8 accelerators"
    assert replace(served, idle_ns=750 * NS).cost(rate)["remark"] == ""
    silent = Totals(1.0, 1, 1, 0, 0, 0, 0).cost(rate)
    assert silent["usd_per_million_tokens"] is None
    assert served.cost(replace(rate, usd_per_hour=None))["usd_per_million_tokens"] is None


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
