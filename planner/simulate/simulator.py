"""Simulation of a workload in virtual time: engines schedule as the server does, and the cost model charges steps.

There is no clock and no randomness: the same options give the same report. Arrivals go to one engine of all groups on
all instances, by load unless the options say otherwise (routing.py). An autoscaler may add and remove instances
(fleet.py, autoscaling.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from ...server.clock import NS
from ...server.config import CacheConfig, SchedulerConfig
from ...server.cost.links import HAND_OVER_REASON
from ...server.cost.model import CostModel
from ...server.cost.pricer import HostOfSteps, StepPricer
from ...server.cost.work import Runtime
from ...server.errors import InvalidRequest, QueueFull
from ...server.scheduler.admission import check_queue, resolve_max_tokens
from ...server.workload.workload import Workload
from .autoscaling import policy_of
from .disaggregation import Divided, divide
from .fleet import Fleet
from .load_bands import LOAD_FIGURES, load_band
from .options import SimulationOptions
from .records import NEVER, Engine, Records
from .report import SimulationReport
from .routing import Balancer, LeastLoaded, PrefixAware, RoundRobin
from .scheduled_engine import ScheduledEngine, request_of


def run_simulation(options: SimulationOptions) -> SimulationReport:
    """Serve `options.workload` to its end.

    Raises SettingsError for contradicting settings or an unknown price, DeviceError for what the instance cannot do,
    and DeviceMemoryError if the model does not fit.
    """
    options.check()
    cache = options.resolve_cache()
    stack = options.serving_stack
    runtime = Runtime(options.quantization_dtype, is_continuous=stack.is_continuous, sdk=options.sdk)
    model = CostModel.of(options.model, options.device, options.tensor_parallel_size, runtime)
    host = HostOfSteps.of(stack, model)
    buckets, checking = (options.compiled_prompts, options.compiled_contexts), model.checking(options.speculation)
    pricer = StepPricer(model, options.max_num_seqs, *buckets, host, checking)
    records = Records(len(options.workload))

    def replica() -> list[ScheduledEngine]:
        engine = partial(ScheduledEngine, options.scheduler, cache, pricer, options.workload, records)
        engines = [engine() for _ in range(options.data_parallel_size)]
        for each in engines:
            each.is_step_by_step, each.slo = options.step_by_step, options.slo
        return engines

    fleet = _fleet(options, replica)
    balancer = _balancer(options, fleet, cache)
    if options.disaggregate is not None:
        divide(fleet.engines, options, model)
        balancer = Divided(balancer, LeastLoaded(), fleet.engines)
    driver = Driver(fleet, options.workload, records, options.scheduler, cache, balancer)
    driver.request_ns = round(host.work.request_s * NS)
    driver.run(options.max_concurrency)
    longest = int((options.workload.input_len + options.workload.output_len).max())
    positions = pricer.decode_bucket(min(options.max_model_len, longest))
    bands = {each: load_band(each, model, stack, options.max_num_seqs, positions) for each in LOAD_FIGURES}
    reasons = (*pricer.extrapolated, *([HAND_OVER_REASON] if records.handed else []))
    return SimulationReport(options, cache.num_blocks, records, fleet, reasons, bands)


def _fleet(options: SimulationOptions, replica: Callable[[], Sequence[ScheduledEngine]]) -> Fleet[ScheduledEngine]:
    """Return a fleet whose first replicas are ready at the first arrival, with the options' autoscaler if any."""
    scaling, start_ns = options.autoscaling, int(options.workload.arrival_ns[0])
    fleet = Fleet(replica, start_ns, scaling.startup_ns(options.weight_bytes))
    fleet.begin(scaling.clamp(options.replicas), start_ns)
    if not scaling.is_fixed:
        fleet.policy = policy_of(scaling, options.data_parallel_size * options.max_num_seqs)
    return fleet


def _balancer(options: SimulationOptions, fleet: Fleet[ScheduledEngine], cache: CacheConfig) -> Balancer:
    if options.routing == "round-robin":
        return RoundRobin()
    if options.routing == "least-loaded":
        return LeastLoaded()
    request = partial(request_of, options.workload, max_model_len=options.max_model_len)
    return PrefixAware(cache, request, fleet.engines)


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
            if self._fleet is not None and self._fleet.policy is not None:
                idle |= self._scale(self._fleet, now_ns)
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
            scale_ns = self._fleet.next_ns
            if scale_ns != NEVER and (now_ns == NEVER or scale_ns < now_ns):
                return scale_ns
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
                num_open = engine.num_open
                if num_open != self._loads[number]:
                    self._num_open += num_open - self._loads[number]
                    self._loads[number] = num_open
                    self._balancer.loaded(number, num_open)
                    if not num_open and self._fleet is not None:
                        self._fleet.emptied(number, now_ns)
                if isinstance(self._balancer, Divided):
                    for index in self._balancer.take_handed(number):
                        self._num_open += 1
                        self._give(self._balancer.decodes.choose(index, now_ns), index, now_ns, idle)
        return idle

    def _scale(self, fleet: Fleet[Any], now_ns: int) -> set[int]:
        """Open and drain replicas. Returns the idle engines that got held requests."""
        for number in fleet.take_ready(now_ns):
            self._open(number)
        for number in fleet.tick(now_ns, self._num_open, self._num_waiting):
            self._balancer.close(number)
            self._num_routable -= 1
        idle: set[int] = set()
        while self._held and self._num_routable:
            self._route(self._held.popleft(), now_ns, idle)
        return idle

    def _open(self, number: int) -> None:
        self._loads[number : number + 1] = [0]
        self._num_routable += 1
        self._balancer.open(number)

    def _num_waiting(self) -> int:
        """Return the number of sent requests that are in no step yet."""
        first, end = self._first_waiting, self._next
        sent, begun = (
            np.frombuffer(times, dtype=np.int64)[first:end] != NEVER
            for times in (self._records.sent_ns, self._records.scheduled_ns)
        )
        waits = np.flatnonzero(sent & ~begun)
        self._first_waiting = first + int(waits[0]) if len(waits) else end
        return len(waits)

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
        if not self._is_welcome(index, number):
            self._balancer.refused(index)
            self._records.sent_ns[index] = NEVER
            self._num_open -= 1
            return
        self._give(number, index, now_ns, idle)

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

    def _is_welcome(self, index: int, number: int) -> bool:
        """Return whether the server would take request `index`; a refusal is counted."""
        num_input, num_output = self._lengths[index]
        try:
            resolve_max_tokens(
                num_input, num_output, max_model_len=self._config.max_model_len, cache=self._cache, param="prompt"
            )
            check_queue(self._loads[number], 1, self._config.max_num_queued_reqs)
        except InvalidRequest:
            self._records.refused["context_length_exceeded"] += 1
        except QueueFull:
            self._records.refused["queue_full"] += 1
        else:
            return True
        return False
