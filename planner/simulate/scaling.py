"""Actions of an autoscaler in a simulation: replicas over time, and requests that arrived while some were starting."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ...server.clock import NS
from ...workload.workload import BoolArray, IntArray
from .fleet import Count, Fleet
from .records import NEVER


@dataclass(frozen=True)
class Scaling:
    """Scaling of one fleet from `start_ns` to `end_ns`."""

    fleet: Fleet[Any]
    start_ns: int
    end_ns: int

    @cached_property
    def share_of_time(self) -> dict[int, float]:
        """Number of ready replicas -> share of the time, 0 to 1; in order of number."""
        spent: Counter[int] = Counter()
        timeline = [*self.fleet.timeline, Count(self.end_ns, 0, 0, 0)]
        for count, following in pairwise(timeline):
            spent[count.ready] += following.time_ns - count.time_ns
        whole = self.end_ns - self.start_ns
        return {ready: spent[ready] / whole for ready in sorted(spent) if spent[ready]} if whole else {}

    @property
    def mean_ready(self) -> float:
        """Mean number of ready replicas over the time."""
        return sum(ready * share for ready, share in self.share_of_time.items())

    def arrived_while_starting(self, sent_ns: IntArray) -> BoolArray:
        """Return for each time whether a replica was launched and not ready yet."""
        starts: list[tuple[int, int]] = []
        for replica in self.fleet.replicas:
            ready_ns = replica.ready_ns if replica.gone_ns == NEVER else min(replica.ready_ns, replica.gone_ns)
            if starts and replica.launched_ns <= starts[-1][1]:
                starts[-1] = starts[-1][0], max(starts[-1][1], ready_ns)
            elif ready_ns > replica.launched_ns:
                starts.append((replica.launched_ns, ready_ns))
        if not starts:
            return np.zeros(len(sent_ns), dtype=np.bool_)
        begins, ends = np.array(starts, dtype=np.int64).T
        place = np.searchsorted(begins, sent_ns, side="right") - 1
        is_starting: BoolArray = (place >= 0) & (sent_ns < ends[place])
        return is_starting

    def as_json(self) -> dict[str, Any]:
        """Return plain values; times are seconds after the first arrival."""
        fleet = self.fleet
        return {
            "startup_delay_s": fleet.startup_ns / NS,
            "launches": len(fleet.replicas),
            "terminations": sum(replica.gone_ns != NEVER for replica in fleet.replicas),
            "mean_ready_replicas": self.mean_ready,
            "most_ready_replicas": max(self.share_of_time, default=0),
            "share_of_time": {str(ready): share for ready, share in self.share_of_time.items()},
            "timeline": [
                {
                    "time_s": (count.time_ns - self.start_ns) / NS,
                    "ready": count.ready,
                    "starting": count.starting,
                    "draining": count.draining,
                }
                for count in fleet.timeline
            ],
        }
