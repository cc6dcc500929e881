"""Simulation of a workload in virtual time: engines schedule as the server does, and the cost model charges steps.

There is no clock and no randomness: the same options give the same report. Arrivals go to one engine of all groups on
all instances, by load unless the options say otherwise (routing.py). An autoscaler may add and remove instances
(fleet.py, autoscaling.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...server.clock import NS
from ...server.config import CacheConfig
from ...server.cost.links import HAND_OVER_REASON
from ...server.cost.model import CostModel
from ...server.cost.pricer import HostOfSteps, StepPricer
from ...server.cost.work import Runtime
from .autoscaling import policy_of
from .disaggregation import Divided, divide
from .driver import Driver
from .failing_fleet import FailingFleet
from .failures import Fates
from .fleet import Fleet
from .load_bands import LOAD_FIGURES, load_band
from .options import SimulationOptions
from .records import Records
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
    """Return a fleet whose first replicas are ready at the first arrival, with the options' autoscaler and failures."""
    scaling, startup_ns, start_ns = options.autoscaling, options.startup_ns, int(options.workload.arrival_ns[0])
    if options.failures.is_set:
        fleet: Fleet[ScheduledEngine] = FailingFleet(replica, start_ns, startup_ns, Fates(options.failures, start_ns))
    else:
        fleet = Fleet(replica, start_ns, startup_ns)
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
