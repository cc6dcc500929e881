"""A fleet whose replicas may end unasked. Another is launched in the place of each, in a zone that is up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...server.clock import NS
from .failures import SPOT_NOTICE_NS, Event, Fates
from .fleet import EngineT, Fleet, Replica, first_of
from .records import NEVER, Records
from .statistics import Spread

MS = 1e-6  # of a nanosecond


class Losses(NamedTuple):
    """Numbers of engines to which something has happened, in this order."""

    stopped: list[int]  # they compute no more, which their router does not know yet
    closed: list[int]  # they take no more requests
    lost: list[int]  # their requests go on elsewhere


class FailingFleet(Fleet[EngineT]):
    """Fleet of instances in several zones, on demand and spot, whose ends are in `fates`."""

    def __init__(self, engines: Callable[[], Sequence[EngineT]], start_ns: int, startup_ns: int, fates: Fates) -> None:
        super().__init__(engines, start_ns, startup_ns)
        self.ends: Counter[str] = Counter()  # replicas that ended unasked, by the kind of event
        self._fates, self._options = fates, fates.options
        self._num_missing = 0  # lost ones in whose place none was launched yet
        self._num_live = self._num_spot = 0  # replicas that are not gone
        self._in_zone = dict.fromkeys(range(self._options.num_zones), 0)  # replicas of each zone that is up

    def as_json(self, records: Records) -> dict[str, Any]:
        """Return what failed, and what became of requests; one that lost two engines has moved twice."""
        moved = {f"moved_{name}": records.moved[name] for name in ("requests", "tokens")}
        ends = {"ends": dict(self.ends), "longest_pause_ms": max(records.pauses, default=0) * MS}
        return moved | ends | Spread.of_counts(records.pauses, MS).as_json("pause")

    @property
    def is_changing(self) -> bool:
        return True

    @property
    def next_ns(self) -> int:
        """Time of the next scaling event or failure; NEVER without one."""
        return first_of(super().next_ns, self._fates.next_ns)

    @property
    def num_wanted(self) -> int:
        """Number of replicas that are ready, starting, or to be replaced."""
        return super().num_wanted + self._num_missing

    def take_losses(self, now_ns: int) -> Losses:
        """Let happen what is due. The router has not noticed a stopped engine before it is among the closed ones."""
        losses = Losses([], [], [])
        while (event := self._fates.take(now_ns)) is not None:
            self._happen(event, losses)
            self._note(now_ns)
        return losses

    def _happen(self, event: Event, losses: Losses) -> None:
        now_ns, _, kind, of = event
        if kind == "launch":
            if self._num_missing:
                self._num_missing -= 1
                self._launch(now_ns)
        elif kind == "zone_up":
            self._in_zone[of] = 0
        elif kind == "zone_down":
            self._in_zone.pop(of)
            live = [*self._ready, *self._starting, *self._draining]
            for replica in filter(lambda each: each.zone == of, live):
                self._lose(replica, event, losses)
        elif kind == "found":
            if of.drained_ns == NEVER:
                losses.closed.extend(of.numbers)
            losses.lost.extend(of.numbers)
            self._free.append(of.numbers)
        elif of.gone_ns == NEVER:
            (self._give_notice if kind == "spot_notice" else self._lose)(of, event, losses)

    def _give_notice(self, replica: Replica, event: Event, losses: Losses) -> None:
        """Drain a spot instance for as long as it has, and launch another at once."""
        if replica.drained_ns != NEVER:
            return
        self.ends[event.kind] += 1
        if replica in self._starting:
            self._starting.remove(replica)
            self._leave(replica, event.time_ns)
        else:
            self._ready.remove(replica)
            losses.closed.extend(self._empty(replica, event.time_ns))
            self._fates.add(event.time_ns + SPOT_NOTICE_NS, "spot_end", replica)
        self._launch(event.time_ns)

    def _lose(self, replica: Replica, event: Event, losses: Losses) -> None:
        """End an instance. Its router finds that at once if the system shuts down, and else by silence."""
        now_ns, options = event.time_ns, self._options
        self.ends[event.kind] += 1
        for states in (self._ready, self._starting, self._draining):
            if replica in states:
                states.remove(replica)
        if replica.drained_ns == NEVER:  # nothing else was launched in its place
            self._num_missing += 1
            self._fates.add(now_ns + round(options.replacement_delay_s * NS), "launch")
        self._end(replica, now_ns)
        if replica.numbers:
            losses.stopped.extend(replica.numbers)
            silence_s = 0.0 if event.kind == "spot_end" else options.detection_s
            self._fates.add(now_ns + round(silence_s * NS), "found", replica)

    def _launch(self, now_ns: int) -> None:
        """Launch a replica, or wait until a zone is up."""
        if self._in_zone:
            super()._launch(now_ns)
        else:
            self._num_missing += 1
            self._fates.add(self._fates.zone_up_ns, "launch")

    def _launched(self, now_ns: int, ready_ns: int) -> Replica:
        """Launch in the zone with the fewest replicas, on spot as long as its share is not exceeded."""
        is_spot = self._num_spot + 1 <= self._options.spot_share * (self._num_live + 1)
        replica = super()._launched(now_ns, ready_ns)
        replica.zone, replica.is_spot = min(self._in_zone, key=lambda zone: (self._in_zone[zone], zone)), is_spot
        self._in_zone[replica.zone] += 1
        self._num_live, self._num_spot = self._num_live + 1, self._num_spot + is_spot
        self._fates.launched(replica, is_spot, now_ns)
        return replica

    def _drain(self, now_ns: int) -> range:
        """Drain the replica that Kubernetes would choose: one that is to be replaced, a starting one, the youngest."""
        if not self._num_missing:
            return super()._drain(now_ns)
        self._num_missing -= 1
        return range(0)

    def _end(self, replica: Replica, now_ns: int) -> None:
        super()._end(replica, now_ns)
        if replica.zone in self._in_zone:
            self._in_zone[replica.zone] -= 1
        self._num_live, self._num_spot = self._num_live - 1, self._num_spot - replica.is_spot
