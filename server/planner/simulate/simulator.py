"""Serving a workload in virtual time: engines that schedule as the server does, charged by the cost model.

Reads no clock and draws no chance: the same options give the same report. Arrivals go to one of the engines of every
data-parallel group on every instance, by load alone unless the options say otherwise (routing.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from heapq import heapify, heappop, heappush

from server.config import CacheConfig, SchedulerConfig
from server.cost.model import CostModel
from server.cost.pricer import StepPricer
from server.cost.work import Runtime
from server.errors import InvalidRequest, QueueFull
from server.planner.simulate.options import SimulationOptions
from server.planner.simulate.records import NEVER, Engine, Records
from server.planner.simulate.report import SimulationReport
from server.planner.simulate.routing import Balancer, LeastLoaded, PrefixAware, RoundRobin
from server.planner.simulate.scheduled_engine import ScheduledEngine, request_of
from server.scheduler.admission import check_queue, resolve_max_tokens
from server.workload.workload import Workload


def run_simulation(options: SimulationOptions) -> SimulationReport:
    """Serve `options.workload` to its end.

    Raises SettingsError for settings that contradict each other or a price that is not known, DeviceError for what the
    part cannot do, DeviceMemoryError when the model does not fit.
    """
    options.check()
    cache = CacheConfig(options.resolve_num_blocks(), options.block_size, options.enable_prefix_caching)
    runtime = Runtime(options.quantization_dtype, is_continuous=True, sdk=options.sdk)
    model = CostModel.of(options.model, options.device, options.tensor_parallel_size, runtime)
    pricer = StepPricer(
        model, options.max_num_seqs, options.buckets(options.prefill_buckets), options.buckets(options.decode_buckets)
    )
    records = Records(len(options.workload))
    engines = [
        ScheduledEngine(options.scheduler, cache, pricer, options.workload, records) for _ in range(options.num_engines)
    ]
    for engine in engines:
        engine.is_step_by_step = options.step_by_step
    balancer = _balancer(options, engines, cache)
    Driver(engines, options.workload, records, options.scheduler, cache, balancer).run(options.max_concurrency)
    totals = [engine.totals for engine in engines]
    return SimulationReport(options, cache.num_blocks, records, totals, tuple(pricer.extrapolated))


def _balancer(options: SimulationOptions, engines: Sequence[ScheduledEngine], cache: CacheConfig) -> Balancer:
    if options.routing == "round-robin":
        return RoundRobin()
    if options.routing == "least-loaded":
        return LeastLoaded()
    balancer = PrefixAware(
        len(engines), cache, partial(request_of, options.workload, max_model_len=options.max_model_len)
    )
    for engine in engines:
        engine.is_step_by_step, engine.on_token = True, balancer.notify
    return balancer


class Driver:
    """Moves time from event to event. At one instant: what ends is applied, then what arrives, then steps planned."""

    def __init__(
        self,
        engines: Sequence[Engine],
        workload: Workload,
        records: Records,
        config: SchedulerConfig,
        cache: CacheConfig,
        balancer: Balancer | None = None,
    ) -> None:
        """`balancer` is LeastLoaded unless given."""
        self._engines, self._records = engines, records
        self._balancer = balancer or LeastLoaded()
        self._arrival_ns = workload.arrival_ns.tolist()
        self._lengths = list(zip(workload.input_len.tolist(), workload.output_len.tolist(), strict=True))
        self._config, self._cache = config, cache
        self._loads = [0] * len(engines)  # open requests of each engine
        self._ends: list[tuple[int, int]] = []  # heap of (end_ns, engine); stale once the engine's own end differs
        self._next = 0  # the next arrival
        self._num_open = 0
        self._max_open = 0

    def run(self, max_concurrency: int | None = None, until_ns: int | None = None) -> None:
        """Until every request is finished or refused, or the first event after `until_ns`.

        With `max_concurrency` clients hold a request back while that many are open: a closed loop.
        """
        arrivals, ends = self._arrival_ns, self._ends
        self._max_open = len(arrivals) if max_concurrency is None else max_concurrency
        while True:
            is_arriving = self._next < len(arrivals) and self._num_open < self._max_open
            if ends and not (is_arriving and arrivals[self._next] < ends[0][0]):
                now_ns = ends[0][0]
            elif is_arriving:
                now_ns = arrivals[self._next]
            else:
                return
            if until_ns is not None and now_ns > until_ns:
                return
            idle = self._apply(now_ns)
            idle |= self._arrive(now_ns)
            for number in sorted(idle):
                self._plan(number, now_ns)

    def _apply(self, now_ns: int) -> set[int]:
        """Apply what ends now; the engines that have nothing planned because of it."""
        idle = set()
        while self._ends and self._ends[0][0] == now_ns:
            number = heappop(self._ends)[1]
            engine = self._engines[number]
            if engine.end_ns == now_ns:
                engine.apply()
                self._num_open += engine.num_open - self._loads[number]
                self._loads[number] = engine.num_open
                idle.add(number)
        return idle

    def _arrive(self, now_ns: int) -> set[int]:
        """Route what arrives now; the engines that it found idle."""
        idle = set()
        arrivals = self._arrival_ns
        while self._next < len(arrivals) and arrivals[self._next] <= now_ns and self._num_open < self._max_open:
            index, self._next = self._next, self._next + 1
            number = self._balancer.choose(index, self._loads)
            if not self._is_welcome(index, number):
                self._balancer.refused(index)
                continue
            engine = self._engines[number]
            before = engine.end_ns
            engine.add(index, now_ns)
            self._records.sent_ns[index] = now_ns
            self._num_open += 1
            self._loads[number] += 1
            if before == NEVER:
                idle.add(number)
            elif engine.end_ns != before:
                heappush(self._ends, (engine.end_ns, number))
        return idle

    def _plan(self, number: int, now_ns: int) -> None:
        engine = self._engines[number]
        engine.plan(now_ns)
        if engine.end_ns != NEVER:
            heappush(self._ends, (engine.end_ns, number))
        if len(self._ends) > 8 * len(self._engines):  # stale entries
            self._ends[:] = [(one.end_ns, i) for i, one in enumerate(self._engines) if one.end_ns != NEVER]
            heapify(self._ends)

    def _is_welcome(self, index: int, number: int) -> bool:
        """Whether the server would take request `index`; a refusal is counted."""
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
