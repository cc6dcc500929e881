"""Unplanned ends of replicas: hosts and zones that fail, spot instances that AWS takes back.

Options, and the events that follow from them and a seed. What a fleet does about an event is in fleet.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Literal, NamedTuple

from ...server.clock import NS
from ...server.errors import SettingsError
from ...server.route.rules import PROBE_S, SILENCE_S
from ...workload.synthetic import random_stream
from .records import HOUR_S, NEVER

# docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
SPOT_NOTICE_NS = 120 * NS
# Kubernetes replaces the pods of a silent host after kube-controller-manager's --node-monitor-grace-period (50 s since
# 1.32) and the tolerationSeconds that pods get by default for node.kubernetes.io/unreachable (300 s).
REPLACEMENT_DELAY_S = 50.0 + 300.0
_OUTAGE = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)(?::(\d{1,3}))?")

Kind = Literal["node", "spot_notice", "spot_end", "zone_down", "zone_up", "found", "launch"]


class ZoneOutage(NamedTuple):
    """A zone whose instances all fail at once, and in which none can be launched until it ends. Seconds."""

    start_s: float  # after the first arrival
    duration_s: float
    zone: int = 0

    @classmethod
    def parse(cls, text: str) -> ZoneOutage:
        """Read START:SECONDS or START:SECONDS:ZONE. Raises SettingsError."""
        found = _OUTAGE.fullmatch(text)
        if found is None:
            raise SettingsError(f"zone_outage is {text!r}: it is START:SECONDS or START:SECONDS:ZONE")
        return cls(float(found[1]), float(found[2]), int(found[3] or 0))


@dataclass(frozen=True, slots=True)
class Failures:
    """Rates of failures, and how they are met. None: it does not happen. Each replica is an instance of its own."""

    node_mtbf_h: float | None = None  # mean hours until an instance fails, without a sign
    spot_share: float = 0.0  # of instances, as far as whole ones allow
    spot_mtbf_h: float | None = None  # mean hours until AWS takes a spot instance back, two minutes after a notice
    num_zones: int = 3  # over which instances are spread evenly
    zone_outage: ZoneOutage | None = None
    detection_s: float = SILENCE_S + PROBE_S / 2  # until the router finds a failed instance: silence after a probe
    replacement_delay_s: float = REPLACEMENT_DELAY_S  # until another instance is launched for a failed one
    seed: int = 0

    @property
    def is_set(self) -> bool:
        """Whether any replica may be on a spot instance, or end unasked."""
        return bool(self.node_mtbf_h or self.spot_share or self.zone_outage)

    def check(self) -> None:
        """Raise SettingsError for impossible values."""
        if not 0 <= self.spot_share <= 1:
            raise SettingsError(f"spot_share is {self.spot_share:g}: it is 0 to 1")
        if (self.spot_share > 0) != (self.spot_mtbf_h is not None):
            raise SettingsError(f"spot_share is {self.spot_share:g} and spot_mtbf_h {self.spot_mtbf_h}: give both")
        for name in ("node_mtbf_h", "spot_mtbf_h"):
            hours = getattr(self, name)
            if hours is not None and not 0 < hours < inf:
                raise SettingsError(f"{name} is {hours:g}: it must be above 0 and finite")
        for name in ("detection_s", "replacement_delay_s"):
            if not 0 <= getattr(self, name) < inf:
                raise SettingsError(f"{name} is {getattr(self, name):g}: it must be at least 0 and finite")
        if self.num_zones < 1:
            raise SettingsError(f"num_zones is {self.num_zones}: it must be at least 1")
        if self.zone_outage is not None and self.zone_outage.zone >= self.num_zones:
            raise SettingsError(f"zone_outage is of zone {self.zone_outage.zone}: zones are 0 to {self.num_zones - 1}")


class Event(NamedTuple):
    """Something that happens to a replica, or to a zone, at `time_ns`. Events of one time keep their order."""

    time_ns: int
    number: int
    kind: Kind
    of: Any  # the replica or the zone


class Fates:
    """Events to come, in order of time."""

    def __init__(self, options: Failures, start_ns: int) -> None:
        self.options = options
        self._events: list[Event] = []
        self._numbers = count()
        self._launches = count()
        self.zone_up_ns = NEVER
        if options.zone_outage is not None:
            start_s, duration_s, zone = options.zone_outage
            self.add(start_ns + round(start_s * NS), "zone_down", zone)
            self.zone_up_ns = start_ns + round((start_s + duration_s) * NS)
            self.add(self.zone_up_ns, "zone_up", zone)

    @property
    def next_ns(self) -> int:
        """Time of the next event; NEVER without one."""
        return self._events[0].time_ns if self._events else NEVER

    def add(self, time_ns: int, kind: Kind, of: Any = None) -> None:
        """Let something happen at a time."""
        heappush(self._events, Event(time_ns, next(self._numbers), kind, of))

    def take(self, now_ns: int) -> Event | None:
        """Remove and return the next event that is due; None without one."""
        return heappop(self._events) if self._events and self._events[0].time_ns <= now_ns else None

    def launched(self, replica: Any, is_spot: bool, now_ns: int) -> None:
        """Draw when a replica will end that is launched now. Each has a random stream, by the order of launches."""
        random = random_stream(self.options.seed, "failures", next(self._launches))
        means: dict[Kind, float | None] = {"node": self.options.node_mtbf_h}
        means["spot_notice"] = self.options.spot_mtbf_h if is_spot else None
        for kind, mean_h in means.items():
            after_ns = round(random.standard_exponential() * (mean_h or 0) * HOUR_S * NS)
            if mean_h is not None:
                self.add(now_ns + after_ns, kind, replica)
