"""Cost of the replicas of a simulation, and the share of it that requests used. Computed from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...server.clock import NS
from .fleet import Replica
from .options import SimulationOptions
from .records import HOUR_S, SHARES, Records


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars of the whole run. Attributed = prefill + decode, from the requests; idle, from the engines."""

    total_usd: float  # hours of instances x price, on demand and spot
    prefill_usd: float
    decode_usd: float
    idle_usd: float  # of engines without a request, of starting instances, and of steps that a failure cut off

    @property
    def attributed_usd(self) -> float:
        return self.prefill_usd + self.decode_usd

    @property
    def conservation_error(self) -> float:
        """|attributed + idle - total| / total; 0 if nothing was spent."""
        spent = self.attributed_usd + self.idle_usd
        return abs(spent - self.total_usd) / self.total_usd if self.total_usd else 0.0


class Bill:
    """Bill of all replicas. Terminated replicas are billed by the second, others to the end of the run."""

    def __init__(
        self, options: SimulationOptions, replicas: Sequence[Replica], start_ns: int, duration_s: float
    ) -> None:
        """Bill a run of `duration_s` from `start_ns` on."""
        self._options, self._replicas = options, replicas
        self._end_ns = start_ns + round(duration_s * NS)

    @cached_property
    def usd_per_ns(self) -> float:
        """Price of an engine: the mean of all billed instances."""
        options, billed = self._options, sum(self.billed_ns)
        share = self.spot_ns / billed if billed else 0.0
        hourly = options.hourly_usd * (1 - share) + options.spot_hourly_usd * share
        return hourly / HOUR_S / NS / options.data_parallel_size

    @cached_property
    def spot_ns(self) -> int:
        """Billed nanoseconds of spot instances. AWS bills those that it takes back in their first hour less."""
        return sum(ns for ns, each in zip(self.billed_ns, self._replicas, strict=True) if each.is_spot)

    @cached_property
    def billed_ns(self) -> list[int]:
        """Billed nanoseconds of each replica, in order of launch."""
        return [replica.billed_ns(self._end_ns) for replica in self._replicas]

    @property
    def replica_hours(self) -> float:
        """Billed hours of instances."""
        return sum(self.billed_ns) / NS / HOUR_S

    @property
    def utilization(self) -> float:
        """Share of the engines' billed time with a step under way, 0 to 1."""
        paid_ns = sum(self.billed_ns) * self._options.data_parallel_size
        return self._busy_ns / paid_ns if paid_ns else 0.0

    def cost(self, records: Records) -> Cost:
        """Return the cost of the whole run. The price of an instance is divided evenly among its engines."""
        prices = {False: self._options.hourly_usd, True: self._options.spot_hourly_usd}
        spots = (each.is_spot for each in self._replicas)
        seconds = Counter((ns / NS, is_spot) for ns, is_spot in zip(self.billed_ns, spots, strict=True))
        idle_ns = sum(self.billed_ns) * self._options.data_parallel_size - self._busy_ns
        return Cost(
            total_usd=sum(count * prices[is_spot] * each / HOUR_S for (each, is_spot), count in seconds.items()),
            prefill_usd=sum(records.prefill_shares) / SHARES * self.usd_per_ns,
            decode_usd=sum(records.decode_shares) / SHARES * self.usd_per_ns,
            idle_usd=idle_ns * self.usd_per_ns,
        )

    @cached_property
    def _busy_ns(self) -> int:
        return sum(totals.busy_ns for replica in self._replicas for totals in replica.totals)
