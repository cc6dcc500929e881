"""Dollars of a stretch of wall clock: what the instances cost in it, and what of that the modelled accelerator used.

Conservation: steps + idle + host + unassigned cores = price of the instances x wall clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..server.clock import NS
from ..server.cost.charge_rate import ChargeRate, host_remark
from ..server.device.prices import usd_per_million


@dataclass(frozen=True, slots=True)
class CostWindow:
    """Times in nanoseconds, summed over all engines; each engine has the same `rate`."""

    rate: ChargeRate
    wall_ns: int
    busy_ns: int  # of the modelled accelerator
    idle_ns: int
    num_tokens: int  # in, cached or not, and out

    @property
    def host_ns(self) -> int:
        """Time that the host took beyond the accelerator's; negative if the host is faster than the accelerator."""
        return self.wall_ns - self.busy_ns - self.idle_ns

    @property
    def usd(self) -> float | None:
        """Dollars of all instances over the window."""
        return self.rate.rent_usd(self.wall_ns)

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Dollars of the instances over the window's tokens."""
        return usd_per_million(self.usd, self.num_tokens)

    @property
    def modelled_usd_per_million_tokens(self) -> float | None:
        """Dollars of the accelerator's steps alone over the same tokens: no idle time, no host, no unassigned cores."""
        return usd_per_million(self.rate.usd(self.busy_ns), self.num_tokens)

    def as_json(self) -> dict[str, float | str | None]:
        """Return seconds, dollars and dollars per million tokens; null if no price is known or no token was served."""
        rate = self.rate
        return {
            "busy_s": self.busy_ns / NS,
            "idle_s": self.idle_ns / NS,
            "host_s": self.host_ns / NS,
            "usd": self.usd,
            "busy_usd": rate.usd(self.busy_ns),
            "idle_usd": rate.usd(self.idle_ns),
            "host_usd": rate.usd(self.host_ns),
            "unused_cores_usd": rate.unused_usd(self.wall_ns),
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "modelled_usd_per_million_tokens": self.modelled_usd_per_million_tokens,
            "remark": host_remark(self.wall_ns, self.busy_ns, self.idle_ns),
        }
