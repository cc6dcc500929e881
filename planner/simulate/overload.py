"""Whether requests came faster than a deployment served them, so that its times are those of a growing queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...server.clock import NS
from ...workload.workload import IntArray

WARM_UP = 5  # the first fifth of the arrivals fills the deployment
KEPT = 0.95  # share of the arrivals that must have been served while they came


@dataclass(frozen=True, slots=True)
class Overload:
    """Rates while requests came, after the first fifth of them."""

    offered_per_s: float
    served_per_s: float  # the rate that the deployment keeps up with, by these lengths

    @property
    def sentence(self) -> str:
        return (
            f"OVERLOADED: {self.offered_per_s:.3g} requests/s came and {self.served_per_s:.3g} were served, so a queue "
            f"grew until the last arrival; the times are those of that queue. Up to about "
            f"{self.served_per_s:.3g} requests/s it keeps up: lower the rate, or add replicas."
        )


def overload_of(arrival_ns: IntArray, finish_ns: IntArray, num_slots: int) -> Overload | None:
    """Return the rates if more requests waited at the last arrival than `num_slots` serve at once, else None.

    `arrival_ns` and `finish_ns` are of the same requests. Arrivals at one moment are a burst and no rate.
    """
    begin, end = np.sort(arrival_ns)[len(arrival_ns) // WARM_UP], arrival_ns.max()
    seconds = float(end - begin) / NS
    came, served = int((arrival_ns > begin).sum()), int(((finish_ns > begin) & (finish_ns <= end)).sum())
    num_open = int((finish_ns > end).sum())
    if seconds <= 0 or num_open <= 2 * num_slots or served >= KEPT * came:
        return None
    return Overload(came / seconds, served / seconds)
