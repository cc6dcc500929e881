"""Driver of a simulation: moves virtual time from event to event, for engines of any kind.

It has no clock and no randomness. Arrivals go to one engine of all groups on all instances, by load unless the balancer
says otherwise (routing.py). A fleet may add, remove (fleet.py) and lose instances (failing_fleet.py), whose requests go
on elsewhere (recovery.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from ...server.config import CacheConfig, SchedulerConfig
from ...server.errors import InvalidRequest, QueueFull
from ...server.scheduler.admission import check_queue, resolve_max_tokens
from ...workload.workload import Workload
from .disaggregation import Divided
from .failing_fleet import FailingFleet
from .fleet import Fleet, first_of
from .records import NEVER, Engine, Records
from .recovery import Recovery
from .routing import Balancer, LeastLoaded


class Driver:
    """Moves time from event to event.

    At one instant ended steps are applied, then replicas open and drain, then requests arrive, then steps are planned.
    """

    def __init__(
        self,
        engines: Sequence[Engine] | Fleet[Any],
        workload: Workload,
        records: Records,
        config: SchedulerConfig,
        cache: CacheConfig,
        balancer: Balancer | None = None,
    ) -> None:
        """Take fixed engines, or a fleet that has begun. `balancer` is LeastLoaded unless given."""
        self._fleet = engines if isinstance(engines, Fleet) else None
        self._engines = engines.engines if isinstance(engines, Fleet) else engines
        self._records = records
        self._balancer = balancer or LeastLoaded()
        self._arrival_ns = workload.arrival_ns.tolist()
        self._lengths = list(zip(workload.input_len.tolist(), workload.output_len.tolist(), strict=True))
        self._config, self._cache = config, cache
        self._loads: list[int] = []  # open requests of each engine
        self._num_routable = 0  # engines that take requests
        self._held: deque[int] = deque()  # sent requests that wait for an open engine
        self._ends: list[tuple[int, int]] = []  # heap of (end_ns, engine); stale once the engine's own end differs
        self._next = 0  # the next arrival
        self._num_open = 0
        self._max_open = 0
        self.request_ns = 0  # the host's work on a request, between sending and queue
        self._coming: deque[tuple[int, int]] = deque()  # sent requests: (time in the queue, index), in order
        self._recovery = Recovery(records)
        self._first_waiting = 0  # no request before it waits for its first step
        for number in range(len(self._engines)):
            self._open(number)

    def run(self, max_concurrency: int | None = None, until_ns: int | None = None) -> None:
        """Run until every request is finished or refused, or to the first event after `until_ns`.

        With `max_concurrency` clients hold requests back while that many are open: a closed loop.
        """
        self._max_open = len(self._arrival_ns) if max_concurrency is None else max_concurrency
        while (now_ns := self._next_event()) != NEVER:
            if until_ns is not None and now_ns > until_ns:
                return
            idle = self._apply(now_ns)
            if self._fleet is not None and self._fleet.is_changing:
                self._change(self._fleet, now_ns, idle)
            idle |= self._arrive(now_ns)
            for number in sorted(idle):
                self._plan(number, now_ns)

    def _next_event(self) -> int:
        """Return the time of the next event; NEVER if all is done."""
        now_ns = self._ends[0][0] if self._ends else NEVER
        is_sending = self._is_sending
        if is_sending and (now_ns == NEVER or self._arrival_ns[self._next] < now_ns):
            now_ns = self._arrival_ns[self._next]
        if self._coming and (now_ns == NEVER or self._coming[0][0] < now_ns):
            now_ns = self._coming[0][0]
        if self._fleet is not None and (is_sending or self._num_open):
            return first_of(now_ns, self._fleet.next_ns, self._recovery.next_ns)
        return now_ns

    def _apply(self, now_ns: int) -> set[int]:
        """Apply the steps that end now. Returns the engines that are idle after it."""
        idle = set()
        while self._ends and self._ends[0][0] == now_ns:
            number = heappop(self._ends)[1]
            engine = self._engines[number]
            if engine.end_ns == now_ns:
                engine.apply()
                idle.add(number)
                self._count_open(number, now_ns)
                if isinstance(self._balancer, Divided):
                    for index in self._balancer.take_handed(number):
                        self._num_open += 1
                        self._give(self._balancer.decodes.choose(index, now_ns), index, now_ns, idle)
        return idle

    def _count_open(self, number: int, now_ns: int) -> None:
        """Count the requests that an engine has finished."""
        num_open = self._engines[number].num_open
        if num_open != self._loads[number]:
            self._num_open += num_open - self._loads[number]
            self._loads[number] = num_open
            self._balancer.loaded(number, num_open)
            if not num_open and self._fleet is not None:
                self._fleet.emptied(number, now_ns)

    def _change(self, fleet: Fleet[Any], now_ns: int, idle: set[int]) -> None:
        """Lose, open and drain replicas. Idle engines that got requests are added to `idle`."""
        if isinstance(fleet, FailingFleet):
            self._lose(fleet, now_ns, idle)
        for number in fleet.take_ready(now_ns):
            self._open(number)
        for number in fleet.tick(now_ns, self._num_open, self._num_waiting):
            self._close(number)
        while self._held and self._num_routable:
            self._route(self._held.popleft(), now_ns, idle)

    def _lose(self, fleet: FailingFleet[Any], now_ns: int, idle: set[int]) -> None:
        """Stop engines that fail now, and move the requests of those that are found to have failed."""
        while self._held and self._recovery.is_late(self._held[0], now_ns):
            self._refuse(self._held.popleft(), "no_replica")
        losses = fleet.take_losses(now_ns)
        for number in losses.stopped:
            fleet.engines[number].stop(now_ns)
            self._count_open(number, now_ns)
        for number in losses.closed:
            self._close(number)
        moving = self._recovery.take_due(now_ns)
        for number in losses.lost:
            moving += fleet.engines[number].take_open(now_ns)
            self._loads[number] = 0
        for index in moving:
            if self._recovery.is_suspect(index):
                self._refuse(index, "replica_lost")
            elif self._num_routable:
                self._route(index, now_ns, idle)
            else:
                self._held.append(index)

    def _close(self, number: int) -> None:
        self._balancer.close(number)
        self._num_routable -= 1

    def _open(self, number: int) -> None:
        self._loads[number : number + 1] = [0]
        self._num_routable += 1
        self._balancer.open(number)

    def _num_waiting(self) -> int:
        """Return the number of sent requests that wait for their first step, here or on another engine."""
        first, end = self._first_waiting, self._next
        sent, begun = (
            np.frombuffer(times, dtype=np.int64)[first:end] != NEVER
            for times in (self._records.sent_ns, self._records.scheduled_ns)
        )
        waits = np.flatnonzero(sent & ~begun)
        self._first_waiting = first + int(waits[0]) if len(waits) else end
        scheduled_ns = self._records.scheduled_ns
        return len(waits) + sum(scheduled_ns[index] != NEVER for index in self._records.carried)

    def _arrive(self, now_ns: int) -> set[int]:
        """Take the requests of this instant; route those that the host is done with. Returns idle engines with one."""
        idle: set[int] = set()
        while True:
            if self._is_sending and self._arrival_ns[self._next] <= now_ns:
                index, self._next = self._next, self._next + 1
                self._num_open += 1
                self._records.sent_ns[index] = now_ns
                self._coming.append((now_ns + self.request_ns, index))
            elif self._coming and self._coming[0][0] <= now_ns:  # after a refusal its client sends the next
                index = self._coming.popleft()[1]
                if self._num_routable:
                    self._route(index, now_ns, idle)
                else:
                    self._held.append(index)
            else:
                return idle

    @property
    def _is_sending(self) -> bool:
        """Whether a client may send the next request as soon as it arrives."""
        return self._next < len(self._arrival_ns) and self._num_open < self._max_open

    def _route(self, index: int, now_ns: int, idle: set[int]) -> None:
        """Give a request to an engine, or count its refusal. An idle engine is added to `idle`."""
        number = self._balancer.choose(index, now_ns)
        reason = self._refusal(index, number)
        if reason is None:
            self._give(number, index, now_ns, idle)
            return
        self._balancer.refused(index)
        reason = self._recovery.refused(index, reason, now_ns)
        if reason is not None:
            self._refuse(index, reason)

    def _refuse(self, index: int, reason: str) -> None:
        self._records.refused[reason] += 1
        self._records.sent_ns[index] = NEVER
        self._records.carried.pop(index, None)
        self._num_open -= 1

    def _give(self, number: int, index: int, now_ns: int, idle: set[int]) -> None:
        engine = self._engines[number]
        before = engine.end_ns
        engine.add(index, now_ns)
        self._loads[number] += 1
        self._balancer.loaded(number, self._loads[number])
        if before == NEVER:
            idle.add(number)
        elif engine.end_ns != before:
            heappush(self._ends, (engine.end_ns, number))

    def _plan(self, number: int, now_ns: int) -> None:
        engine = self._engines[number]
        engine.plan(now_ns)
        if engine.end_ns != NEVER:
            heappush(self._ends, (engine.end_ns, number))
        if len(self._ends) > 8 * len(self._engines):  # stale entries
            self._ends[:] = [(one.end_ns, i) for i, one in enumerate(self._engines) if one.end_ns != NEVER]
            heapify(self._ends)

    def _refusal(self, index: int, number: int) -> str | None:
        """Return why the server would refuse request `index`; None if it takes it."""
        num_input, num_output = self._lengths[index]
        try:
            resolve_max_tokens(
                num_input, num_output, max_model_len=self._config.max_model_len, cache=self._cache, param="prompt"
            )
            check_queue(self._loads[number], 1, self._config.max_num_queued_reqs)
        except InvalidRequest:
            return "context_length_exceeded"
        except QueueFull:
            return "queue_full"
        return None
