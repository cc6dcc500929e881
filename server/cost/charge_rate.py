"""Dollars of modelled time: an instance's price, and one engine's share of it."""

from __future__ import annotations

from dataclasses import dataclass

from ..clock import NS
from ..device.instances import Instance
from ..device.prices import PriceBasis, rent_usd

NOTABLE = 0.1  # share of a window from which the host's part in it is reported


@dataclass(frozen=True, slots=True)
class ChargeRate:
    """Price of an hour, with its source. Requests and idle time are charged for the engine's own cores."""

    usd_per_hour: float | None  # of the whole instance; None: no price is known
    basis: str  # on_demand, reserved, spot, or given
    date: str | None  # ISO 8601, of the price
    source: str
    share: float  # of the instance's cores, one engine's
    unused_share: float  # of the instance's cores: the unassigned ones, divided evenly among the engines

    @classmethod
    def of(
        cls,
        instance: Instance,
        cores: int,
        basis: PriceBasis,
        usd_per_hour: float | None = None,
        count: tuple[int, int] = (1, 1),
    ) -> ChargeRate:
        """Return the rate of one of several engines of `cores` each; `count` of engines, and of instances for all.

        `usd_per_hour`, of one instance, replaces the catalogue's.
        """
        num_engines, num_instances = count
        share = cores / instance.num_cores
        unused = num_instances / num_engines - share
        if usd_per_hour is not None:
            return cls(usd_per_hour, "given", None, "--usd-per-hour", share, unused)
        price, region = instance.prices.of(basis), instance.prices.region
        if price is None:
            return cls(None, basis, None, f"no price in {region} is known", share, unused)
        return cls(price.usd, basis, price.date, f"{price.source}; Linux, {region}", share, unused)

    def usd(self, ns: int) -> float | None:
        """Return the dollars of `ns` nanoseconds of the engine's cores."""
        return self._usd(ns, self.share)

    def unused_usd(self, ns: int) -> float | None:
        """Return the dollars of this engine's share of the unassigned cores, over the same time."""
        return self._usd(ns, self.unused_share)

    def rent_usd(self, ns: int) -> float | None:
        """Return what this engine's part of the instances costs in `ns` nanoseconds of wall clock, busy or idle."""
        return self._usd(ns, self.share + self.unused_share)

    def _usd(self, ns: int, share: float) -> float | None:
        return None if self.usd_per_hour is None else rent_usd(self.usd_per_hour, ns / NS, share)


def host_remark(wall: float, busy: float, idle: float) -> str:
    """Return the host's influence on the dollars per million tokens of a window; empty if it is small."""
    host = wall - busy - idle
    if wall > 0 and host >= NOTABLE * wall:
        return f"limited by this host for {host / wall:.0%} of the time"
    if wall > 0 and -host >= NOTABLE * wall:
        return f"this host did the work of {busy / max(wall - idle, 1e-9):.1f} accelerators"
    return ""
