"""Prices of an instance-hour in one region, each with its source and date.

Built-in prices are rows of prices.json: dollars, or discounts from the on-demand price, by region and instance. Prices
without a known source are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

PriceBasis = Literal["on_demand", "reserved_1y", "reserved", "capacity_block", "spot"]
PRICE_BASES: tuple[PriceBasis, ...] = get_args(PriceBasis)
DEFAULT_REGION = "us-east-1"
HOUR_S = 3600
_FILE = Path(__file__).with_name("prices.json")


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for an hour of one instance, Linux."""

    usd: float
    source: str  # marked "third party" if it is neither AWS nor generated from AWS's price list
    date: str  # ISO 8601, when the source showed this price


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one instance in one region, a field for each basis; None = not known."""

    region: str
    on_demand: Price | None = None
    reserved_1y: Price | None = None  # effective hourly rate of one year
    reserved: Price | None = None  # effective hourly rate of three years
    capacity_block: Price | None = None  # reserved days ahead, as Trainium2 is sold
    spot: Price | None = None  # an average; it changes by the hour

    def of(self, basis: PriceBasis) -> Price | None:
        """Return the price on `basis`."""
        found: Price | None = getattr(self, basis)
        return found

    def updated(self, given: Mapping[PriceBasis, Price]) -> Prices:
        """Return these prices, overlaid by the `given` ones."""
        merged: dict[str, Price | None] = {basis: given.get(basis) or self.of(basis) for basis in PRICE_BASES}
        return Prices(self.region, **merged)

    def with_spot_discount(self, discount: float, source: str = "", date: str = "") -> Price | None:
        """Return the spot price at `discount` (0 to 1) off the on-demand price; None when that is not known.

        `source` and `date` are the discount's; a user's discount has none.
        """
        if self.on_demand is None:
            return None
        source = source or f"{discount:.0%} off on-demand ({self.on_demand.source})"
        return Price(self.on_demand.usd * (1 - discount), source, date or self.on_demand.date)


def rent_usd(usd_per_hour: float, seconds: float, num_instances: float = 1) -> float:
    """Return what instances cost in `seconds` of wall clock, busy or idle."""
    return usd_per_hour * num_instances * seconds / HOUR_S


def usd_per_million(usd: float | None, num_tokens: float) -> float | None:
    """Return dollars for a million tokens of a window, modelled ones if `usd` is that of device time; None: unknown."""
    return None if usd is None or not num_tokens else 1e6 * usd / num_tokens


def built_in_prices(instance: str, region: str) -> Prices:
    """Return the prices of `instance` in `region` in prices.json."""
    return _table().get((region, instance)) or Prices(region)


def built_in_regions() -> frozenset[str]:
    """Return the regions with a built-in price of any instance."""
    return frozenset(region for region, _ in _table())


def regions_with(instance: str, basis: PriceBasis) -> tuple[str, ...]:
    """Return the regions with a built-in price of `instance` on `basis`, sorted."""
    return tuple(sorted(region for (region, name), row in _table().items() if name == instance and row.of(basis)))


@cache
def _table() -> dict[tuple[str, str], Prices]:
    """Return prices by region and instance. Discounts come last in the file: they need the on-demand price."""
    found: dict[tuple[str, str], Prices] = {}
    for row in json.loads(_FILE.read_text(encoding="utf-8"))["prices"]:
        basis, source, date = row["basis"], row["source"], row["date"]
        for cell, usd in _cells(row.get("usd", {})):
            before = found.get(cell) or Prices(cell[0])
            found[cell] = before.updated({basis: Price(usd, source, date)})
        for cell, share in _cells(row.get("off_on_demand", {})):
            found[cell] = replace(found[cell], spot=found[cell].with_spot_discount(share, source, date))
    return found


def _cells(by_region: dict[str, dict[str, float]]) -> Iterator[tuple[tuple[str, str], float]]:
    for region, row in by_region.items():
        for instance, value in row.items():
            yield (region, instance), value
