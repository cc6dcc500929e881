"""Number of instances of a row, and its limits, at a quantile of its step times.

A row without measurements is sized at least at the slow end of its band: it is recommended only if it wins even so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from .bounds import MIN_CONFIDENCE, SLOW_END
from .known import Ends, Load, fewest_instances, quantile
from .queueing import MAX_LOAD, Replica
from .replicas import Group, PlannedLoad
from .words import misses


@dataclass(frozen=True, slots=True)
class Sizing:
    """The quantile of step times, the replica with these times, and the fewest instances that hold the limits."""

    share: float
    replica: Replica
    fewest: int | None  # None: no number of instances holds the limits
    ends: Ends
    load: Load

    @classmethod
    def of(cls, replica: Replica, group: Group, planned: PlannedLoad, batch: int, extrapolated: str) -> Sizing:
        """Size a row. `extrapolated`: why no measurement supports its times."""
        options = planned.options
        share = max(options.confidence, SLOW_END) if extrapolated else options.confidence
        load = Load(options, planned.demand, group.dp, group.count)
        prefill, decode = group.bands(planned, batch, is_monotone=share > MIN_CONFIDENCE)
        ends = Ends.of(replica, prefill, decode, load)
        if share == SLOW_END:
            return cls(share, ends.slow, ends.instances[1], ends, load)
        sized = replica.scaled(quantile(prefill, share), quantile(decode, share))
        return cls(share, sized, fewest_instances(sized, load), ends, load)

    def count(self, least: int) -> int:
        """Return the places for the rate, at least `least`; if the limits cannot be held, those for the rate alone."""
        carried = self.load.dp * MAX_LOAD * self.replica.saturation
        return max(least, ceil(self.load.options.request_rate / carried), (self.fewest or 0) // self.load.each)

    def most_rate(self, count: int) -> float:
        """Return the most requests a second of one of the replicas of `count` places, within the limits if they hold.

        It is never below the rate at which they are planned.
        """
        if not self.fewest:
            return MAX_LOAD * self.replica.saturation
        within = self._of(count).rate_within(self.load.options.limits)
        return max(within, self._rate(count))

    def misses(self, count: int) -> tuple[str, ...]:
        """Return the missed limits, and by how much."""
        if self.fewest:
            return ()
        loaded = self._of(count).at(self._rate(count))
        return tuple(misses(self.replica.at(0), loaded, self.load.options, self.share))

    def _of(self, count: int) -> Replica:
        return replace(self.replica, peers=count * self.load.dp)

    def _rate(self, count: int) -> float:
        return self.load.options.request_rate / (count * self.load.dp)
