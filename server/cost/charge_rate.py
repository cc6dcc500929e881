"""Dollars of modelled time: an instance's price, and the part of it that one engine's cores are."""

from __future__ import annotations

from dataclasses import dataclass

from neuronserve.server.clock import NS
from neuronserve.server.device.instances import Instance
from neuronserve.server.device.prices import PriceBasis

HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class ChargeRate:
    """What an hour costs, with where that is from. Requests and idle time are charged for the engine's own cores."""

    usd_per_hour: float | None  # of the whole instance; None: no price is known, so nothing is said in dollars
    basis: str  # on_demand, reserved, spot, or given
    date: str | None  # ISO 8601, of the price
    source: str
    share: float  # of the instance's cores that one engine has
    unused_share: float  # of the instance's cores that no engine has, as far as this engine stands for them

    @classmethod
    def of(
        cls, part: Instance, tp: int, basis: PriceBasis, usd_per_hour: float | None = None, num_engines: int = 1
    ) -> ChargeRate:
        """Of one of `num_engines` engines with `tp` cores each on one instance; `usd_per_hour` beats the catalogue."""
        share = tp / part.num_cores
        unused = 1 / num_engines - share
        if usd_per_hour is not None:
            return cls(usd_per_hour, "given", None, "--usd-per-hour", share, unused)
        price, region = part.prices.of(basis), part.prices.region
        if price is None:
            return cls(None, basis, None, f"no price in {region} is known", share, unused)
        return cls(price.usd, basis, price.date, f"{price.source}; Linux, {region}", share, unused)

    def usd(self, ns: int) -> float | None:
        """Of `ns` of the engine's cores."""
        return None if self.usd_per_hour is None else ns / NS / HOUR_S * self.usd_per_hour * self.share

    def unused_usd(self, ns: int) -> float | None:
        """Of the cores that no engine has, over the same time."""
        return None if self.usd_per_hour is None else ns / NS / HOUR_S * self.usd_per_hour * self.unused_share
