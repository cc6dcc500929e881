"""Prices of an instance-hour in one region, each with its source and date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

PriceBasis = Literal["on_demand", "reserved", "spot"]
PRICE_BASES: tuple[PriceBasis, ...] = get_args(PriceBasis)
DEFAULT_REGION = "us-east-1"  # the only one that the built-in sheet has prices of


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for an hour of one instance, Linux."""

    usd: float
    source: str
    date: str  # ISO 8601: when the source had this price


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one instance in one region; None = not known there."""

    region: str
    on_demand: Price | None = None
    reserved: Price | None = None  # effective hourly rate of three years
    spot: Price | None = None  # no list price exists: on demand less the discount that a user names

    def of(self, basis: PriceBasis) -> Price | None:
        """The price on `basis`."""
        return {"on_demand": self.on_demand, "reserved": self.reserved, "spot": self.spot}[basis]

    def with_spot_discount(self, discount: float) -> Price | None:
        """The spot price at `discount` (0 to 1) off the on-demand price; None when that is not known."""
        if self.on_demand is None:
            return None
        source = f"{discount:.0%} off on-demand ({self.on_demand.source})"
        return Price(self.on_demand.usd * (1 - discount), source, self.on_demand.date)
