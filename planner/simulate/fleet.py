"""Replicas of a simulated deployment: launched, starting, ready, draining, gone; and their billed time.

A replica is an instance with its engines. It is billed from its launch on and takes requests once it is ready. A
draining replica takes no more requests and leaves when it has none. The driver moves time and reports what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from ...server.clock import NS
from .autoscaling import SYNC_NS, Observation, Policy
from .records import NEVER, Engine, EngineTotals

# By the second, a minute at least: aws.amazon.com/about-aws/whats-new/2017/10/announcing-amazon-ec2-per-second-billing.
LEAST_BILLED_NS = 60 * NS


@dataclass(slots=True, eq=False)
class Replica:
    """One instance. Times in nanoseconds; NEVER: it has not happened."""

    launched_ns: int
    ready_ns: int  # may lie in the future
    drained_ns: int = NEVER  # start of draining
    gone_ns: int = NEVER
    numbers: range = range(0)  # of its engines, while it is ready or draining
    totals: list[EngineTotals] = field(default_factory=list)  # of its engines
    zone: int = 0
    is_spot: bool = False

    def billed_ns(self, end_ns: int) -> int:
        """Return the billed time up to `end_ns`: whole seconds of a gone replica, the exact time of another."""
        if self.gone_ns == NEVER:
            return end_ns - self.launched_ns
        return max(LEAST_BILLED_NS, -(-(self.gone_ns - self.launched_ns) // NS) * NS)


class Count(NamedTuple):
    """Replicas by state, from `time_ns` on."""

    time_ns: int
    ready: int
    starting: int
    draining: int


def first_of(*times_ns: int) -> int:
    """Return the first of several times, of which some may be NEVER."""
    return min((each for each in times_ns if each != NEVER), default=NEVER)


EngineT = TypeVar("EngineT", bound=Engine)


class Fleet(Generic[EngineT]):
    """All replicas of the run, including gone ones. Without a policy their number stays."""

    def __init__(self, engines: Callable[[], Sequence[EngineT]], start_ns: int, startup_ns: int = 0) -> None:
        """Start an empty fleet. `engines` makes the engines of one replica; the first ones are ready at `start_ns`."""
        self.replicas: list[Replica] = []  # in order of launch
        self.timeline: list[Count] = []
        self.policy: Policy | None = None
        self.engines: list[EngineT] = []  # by number; an engine of a gone replica stays until its number is reused
        self.startup_ns = startup_ns  # from launch to the first request
        self._make = engines
        self._owner: list[Replica] = []  # by number
        self._free: list[range] = []  # numbers of replicas that are gone
        self._starting: list[Replica] = []  # in order of launch, as are the next two
        self._ready: list[Replica] = []
        self._draining: list[Replica] = []
        self._next_tick_ns = start_ns + SYNC_NS

    @property
    def is_changing(self) -> bool:
        """Whether replicas may come and go."""
        return self.policy is not None

    @property
    def next_ns(self) -> int:
        """Time of the next scaling event; NEVER without one."""
        tick_ns = NEVER if self.policy is None else self._next_tick_ns
        return first_of(tick_ns, self._starting[0].ready_ns) if self._starting else tick_ns

    @property
    def num_wanted(self) -> int:
        """Number of replicas that are ready or starting."""
        return len(self._ready) + len(self._starting)

    def begin(self, num_replicas: int, now_ns: int) -> None:
        """Launch replicas that are ready at once."""
        for _ in range(num_replicas):
            self._open(self._launched(now_ns, now_ns))
        self._note(now_ns)

    def take_ready(self, now_ns: int) -> list[int]:
        """Open replicas that have become ready. Returns the numbers of their engines."""
        opened: list[int] = []
        while self._starting and self._starting[0].ready_ns <= now_ns:
            opened += self._open(self._starting.pop(0))
        if opened:
            self._note(now_ns)
        return opened

    def tick(self, now_ns: int, num_open: int, num_waiting: Callable[[], int]) -> list[int]:
        """Apply the policy if it is time. Returns the numbers of engines that take no more requests."""
        if self.policy is None or now_ns < self._next_tick_ns:
            return []
        self._next_tick_ns = now_ns + SYNC_NS
        now = self.num_wanted
        wanted = self.policy.wanted(Observation(now_ns, now, num_open, num_waiting()))
        for _ in range(now, wanted):
            self._launch(now_ns)
        closed = [number for _ in range(wanted, now) for number in self._drain(now_ns)]
        if wanted != now:
            self._note(now_ns)
        return closed

    def emptied(self, number: int, now_ns: int) -> None:
        """Note that engine `number` has no request left."""
        replica = self._owner[number]
        if replica.drained_ns != NEVER and replica.gone_ns == NEVER and self._is_empty(replica):
            self._draining.remove(replica)
            self._leave(replica, now_ns)
            self._note(now_ns)

    def _launch(self, now_ns: int) -> None:
        self._starting.append(self._launched(now_ns, now_ns + self.startup_ns))

    def _launched(self, now_ns: int, ready_ns: int) -> Replica:
        self.replicas.append(Replica(now_ns, ready_ns))
        return self.replicas[-1]

    def _open(self, replica: Replica) -> range:
        engines = self._make()
        self._ready.append(replica)
        replica.totals = [engine.totals for engine in engines]
        if self._free:
            replica.numbers = numbers = self._free.pop()
            self.engines[numbers.start : numbers.stop] = engines
            self._owner[numbers.start : numbers.stop] = [replica] * len(numbers)
        else:
            replica.numbers = range(len(self.engines), len(self.engines) + len(engines))
            self.engines += engines
            self._owner += [replica] * len(engines)
        return replica.numbers

    def _drain(self, now_ns: int) -> range:
        """Drain the replica that Kubernetes would choose: a starting one, else the youngest."""
        if self._starting:
            self._leave(self._starting.pop(), now_ns)
            return range(0)
        return self._empty(self._ready.pop(), now_ns)

    def _empty(self, replica: Replica, now_ns: int) -> range:
        """Give a replica that was ready no more requests. Returns the numbers of its engines."""
        replica.drained_ns = now_ns
        if self._is_empty(replica):
            self._leave(replica, now_ns)
        else:
            self._draining.append(replica)
        return replica.numbers

    def _is_empty(self, replica: Replica) -> bool:
        return not any(self.engines[number].num_open for number in replica.numbers)

    def _leave(self, replica: Replica, now_ns: int) -> None:
        replica.drained_ns = now_ns if replica.drained_ns == NEVER else replica.drained_ns
        self._end(replica, now_ns)
        if replica.numbers:
            self._free.append(replica.numbers)

    def _end(self, replica: Replica, now_ns: int) -> None:
        replica.gone_ns = now_ns

    def _note(self, now_ns: int) -> None:
        if self.timeline and self.timeline[-1].time_ns == now_ns:
            self.timeline.pop()
        self.timeline.append(Count(now_ns, len(self._ready), len(self._starting), len(self._draining)))
