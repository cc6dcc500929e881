"""Failures of a simulation: what ended, which requests moved, and how long their clients saw no token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...server.clock import NS
from .bill import Bill
from .failing_fleet import FailingFleet
from .failures import Failures
from .records import HOUR_S, Records
from .statistics import Spread


@dataclass(frozen=True, slots=True)
class Failed:
    """Failures of one run."""

    options: Failures
    fleet: FailingFleet[Any]
    records: Records
    bill: Bill

    @property
    def pause_ms(self) -> Spread:
        """Time between two tokens of a stream that went on elsewhere in between."""
        return Spread.of_counts(self.records.pauses, 1e3 / NS)

    @property
    def longest_pause_ms(self) -> float:
        return max(self.records.pauses, default=0) * 1e3 / NS

    @property
    def spot_hours(self) -> float:
        return self.bill.spot_ns / NS / HOUR_S

    def as_json(self) -> dict[str, Any]:
        """Return plain values. A request that lost two engines has moved twice."""
        moved = self.records.moved
        found = {
            "ends": dict(self.fleet.ends),
            "moved_requests": moved["requests"],
            "moved_tokens": moved["tokens"],
            "longest_pause_ms": self.longest_pause_ms,
            "spot_hours": self.spot_hours,
            "replica_hours": self.bill.replica_hours,
        }
        return asdict(self.options) | found | self.pause_ms.as_json("pause")
