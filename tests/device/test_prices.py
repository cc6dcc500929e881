"""The built-in prices: each with an origin, none twice, and in the order in which the ways of buying cost."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from pathlib import Path

import pytest

from neuronserve.server.device import prices
from neuronserve.server.device.catalog import INSTANCES, instances, regions
from neuronserve.server.device.prices import PRICE_BASES, Price, Prices, built_in_prices

ROWS = json.loads(Path(prices.__file__).with_name("prices.json").read_text())["prices"]
KNOWN = [(region, part) for region in regions() for part in instances(region)]


def test_each_row_says_who_said_it_and_when() -> None:
    for row in ROWS:
        assert row["basis"] in PRICE_BASES
        assert datetime.date.fromisoformat(row["date"]).year >= 2024
        is_aws = "AWS price list" in row["source"] or "AWS EC2" in row["source"] or "AWS Neuron SDK" in row["source"]
        assert is_aws or "AWS's" in row["source"] or row["source"].startswith("third party: ")


def test_no_price_is_given_twice_and_each_is_of_a_part_of_the_sheet() -> None:
    cells = [
        (row["basis"], region, name)
        for row in ROWS
        for kind in ("usd", "off_on_demand")
        for region, by_instance in row.get(kind, {}).items()
        for name in by_instance
    ]
    assert len(cells) > 400
    assert Counter(cells).most_common(1)[0][1] == 1
    assert {name for *_, name in cells} <= {part.name for part in INSTANCES}


def test_every_cell_of_the_file_is_a_price_of_the_catalogue() -> None:
    told = sum(len(by) for row in ROWS for kind in ("usd", "off_on_demand") for by in row.get(kind, {}).values())
    assert sum(part.usd(basis) is not None for _, part in KNOWN for basis in PRICE_BASES) == told


def test_a_longer_promise_costs_less_everywhere() -> None:
    compared = 0
    for region, part in KNOWN:
        if part.on_demand_usd is None:
            continue
        for basis, low, high in (("reserved_1y", 0.6, 0.7), ("reserved", 0.38, 0.5), ("spot", 0.09, 0.8)):
            usd = part.usd(basis)  # type: ignore[arg-type]
            compared += usd is not None
            assert usd is None or low < usd / part.on_demand_usd < high, (region, part.name, basis)
    assert compared > 200


def test_a_capacity_block_is_priced_by_the_chip() -> None:
    """AWS's page gives the same rate of an accelerator for both sizes of Trainium2."""
    whole, one = built_in_prices("trn2.48xlarge", "us-east-2"), built_in_prices("trn2.3xlarge", "sa-east-1")
    assert whole.capacity_block is not None
    assert one.capacity_block is not None
    assert whole.capacity_block.usd == pytest.approx(16 * one.capacity_block.usd, rel=1e-4)


def test_what_is_not_sold_by_list_price_is_marked() -> None:
    price = built_in_prices("trn2.48xlarge", "us-east-2").on_demand
    assert price is not None
    assert price.source.startswith("third party")
    assert "no on-demand price" in price.source
    assert all(built_in_prices("trn2u.48xlarge", region) == Prices(region) for region in regions())


def test_a_given_price_leaves_the_others() -> None:
    before = built_in_prices("inf2.xlarge", "us-east-1")
    after = before.updated({"reserved": Price(0.1, "a test", "2026-01-01")})
    assert (after.reserved, after.on_demand) == (Price(0.1, "a test", "2026-01-01"), before.on_demand)
