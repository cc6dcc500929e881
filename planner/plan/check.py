"""Simulation of a planned configuration: the same replicas, slots, buckets and arrivals under the real scheduler.

The plan computes means by formulas (queueing.py); a simulation serves single requests. The two must agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...server.clock import NS
from ...server.config.speculation import SpeculationConfig
from ...server.cost.speculation import Speculation
from ...server.cost.stacks import STACKS
from ...server.device.catalog import instance
from ...server.device.prices import rent_usd
from ...server.errors import DeviceError
from ...workload.arrivals import Arrivals
from ...workload.lengths import LengthRange
from ...workload.synthetic import SyntheticWorkload
from ...workload.workload import FloatArray, IntArray, Workload
from ..simulate.options import SimulationOptions
from ..simulate.records import Records
from ..simulate.report import SimulationReport
from ..simulate.simulator import run_simulation
from .demand import Demand
from .report import Candidate, PlanReport
from .weight_types import QUANTIZATION

PER_SLOT = 20  # requests of a check for each slot of the deployment: enough for it to fill and to stay full
MIN_REQUESTS, MAX_REQUESTS = 2_000, 200_000


@dataclass(frozen=True, slots=True)
class Agreement:
    """A figure as planned and as simulated."""

    name: str
    planned: float
    simulated: float

    @property
    def error(self) -> float:
        """Error of the plan relative to the simulation."""
        return self.planned / self.simulated - 1 if self.simulated else 0.0


def simulate_candidate(report: PlanReport, candidate: Candidate, seed: int = 0) -> SimulationReport:
    """Serve the plan's workload on `candidate` at the planned rate. Raises the errors of `run_simulation`."""
    return run_simulation(simulation_of(report, candidate, seed))


def simulation_of(
    report: PlanReport, candidate: Candidate, seed: int = 0, share: float = 1.0, requests: int | None = None
) -> SimulationOptions:
    """Return the candidate as a deployment of `simulate`, under `share` of the plan's arrivals.

    Without `requests`, there are enough for every slot to fill and to stay full. A trace gives its first ones.
    Raises DeviceError for pipeline stages, speculative decoding, adapters and regrouped cores: these are not simulated.
    """
    if reason := why_not_simulated(report, candidate):
        raise DeviceError(reason)
    options, buckets = report.options, report.buckets
    price = candidate.at_rate[options.price_basis]
    return SimulationOptions(
        model=report.model,
        instance=candidate.device,
        workload=_workload(report, candidate, seed, share, requests),
        tensor_parallel_size=candidate.tp,
        data_parallel_size=candidate.dp,
        replicas=candidate.instances,
        max_model_len=buckets.decode,
        max_num_seqs=candidate.batch,
        max_num_queued_reqs=MAX_REQUESTS,
        device_memory_utilization=options.device_memory_utilization,
        quantization=QUANTIZATION[candidate.dtype],
        prefill_buckets=prefill_buckets(report, candidate),
        stack=candidate.stack,
        speculation=None if options.speculation is None else _drafts(options.speculation),
        price_basis=options.price_basis,
        usd_per_hour=None if price is not None else 0.0,
    )


def _drafts(speculation: Speculation) -> SpeculationConfig:
    """Return the configuration whose steps bring as many tokens."""
    length = speculation.tokens_per_step
    return SpeculationConfig("ngram", speculation.num_tokens, synthetic_acceptance_length=length)


def why_not_simulated(report: PlanReport, candidate: Candidate) -> str:
    """Return why a candidate cannot be simulated; empty if it can."""
    if candidate.pp > 1:
        return f"pipeline_parallel_size is {candidate.pp}: a simulation has one stage"
    speculation = report.options.speculation
    is_lookup = speculation is not None and speculation.method.is_lookup
    if missing := [each for each in report.options.features if not (is_lookup and each == "speculation")]:
        return f"a simulation has no {' and no '.join(missing)}"
    if candidate.lnc != (own := instance(candidate.device).chip.lnc):
        return f"the row has LNC {candidate.lnc}: a simulation has the {own} of {candidate.device}"
    return ""


def prefill_buckets(report: PlanReport, candidate: Candidate) -> tuple[int, ...]:
    """Return the compiled lengths that the plan's prompts are padded to, ascending."""
    stack = STACKS[candidate.stack]
    return tuple(sorted({stack.prompt_bucket(length, report.buckets.decode) for length, _ in report.demand.prompts}))


def _workload(report: PlanReport, candidate: Candidate, seed: int, share: float, requests: int | None) -> Workload:
    options = report.options
    if report.demand.trace is not None:
        trace = report.demand.trace.at_rate(share * options.request_rate)
        return trace if requests is None else trace.only(np.arange(len(trace)) < requests)
    slots = candidate.instances * candidate.dp * candidate.batch
    inputs, outputs = options.input_tokens, options.output_tokens
    return SyntheticWorkload(
        requests or max(MIN_REQUESTS, min(MAX_REQUESTS, PER_SLOT * slots)),
        Arrivals(share * options.request_rate),
        LengthRange(inputs, inputs),
        LengthRange(outputs, outputs),
        seed=seed,
    ).generate()


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """Latencies and cost of requests: means in seconds, output tokens a second of everything, dollars (None: no price).

    `tpot_s` is 0 when outputs have one token.
    """

    ttft_s: float
    tpot_s: float
    output_tokens_s: float
    usd_per_million_tokens: float | None  # in and out together

    @classmethod
    def planned(cls, report: PlanReport, candidate: Candidate) -> ServiceFigures:
        """Figures of the plan."""
        price = candidate.at_rate[report.options.price_basis]
        tokens_s = candidate.instances * candidate.output_tokens_s
        return cls(candidate.ttft_s, candidate.tpot_s, tokens_s, None if price is None else price.total_usd)

    @classmethod
    def steady(cls, served: RequestTimes, tokens: Demand, hourly_usd: float | None) -> ServiceFigures:
        """Return the figures between the first fifth of the requests and the last one, in simulated or real time.

        This leaves out the time in which a deployment fills and empties.
        """
        sent, first, finish = served.sent_s, served.first_s, served.finish_s
        begin, end = sent[len(sent) // 5], sent[-1]
        seen = (sent >= begin) & (finish >= 0)
        rate = float(((finish >= begin) & (finish < end)).sum()) / (end - begin)
        steps = int((served.num_output[seen] - 1).sum())
        return cls(
            ttft_s=float((first - sent)[seen].mean()),
            tpot_s=float((finish - first)[seen].sum() / steps) if steps else 0.0,
            output_tokens_s=rate * tokens.output_tokens,
            usd_per_million_tokens=None
            if hourly_usd is None
            else rent_usd(hourly_usd, 1e6 / (rate * tokens.total_tokens)),
        )


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """Times of each request, sorted by `sent_s`. A negative time means that it never happened."""

    sent_s: FloatArray
    first_s: FloatArray
    finish_s: FloatArray
    num_output: IntArray

    @classmethod
    def of(cls, records: Records) -> RequestTimes:
        """Times that a simulation recorded."""
        times = (records.sent_ns, records.first_token_ns, records.finish_ns)
        sent, first, finish = (np.array(ns, dtype=np.float64) / NS for ns in times)
        return cls(sent, first, finish, np.array(records.num_output, dtype=np.int64))


def compared(planned: ServiceFigures, simulated: ServiceFigures) -> tuple[Agreement, ...]:
    """Return pairs of the figures that exist: outputs of one token have no time per token, dollars need a price."""
    names = ("tpot_s", "ttft_s", "output_tokens_s", "usd_per_million_tokens")
    return tuple(
        Agreement(name, getattr(planned, name), getattr(simulated, name)) for name in names if getattr(planned, name)
    )


def agreement(report: PlanReport, candidate: Candidate, simulated: SimulationReport) -> tuple[Agreement, ...]:
    """Return the plan's figures beside those of a simulation of `candidate`."""
    price = candidate.at_rate[report.options.price_basis]
    hourly_usd = None if price is None else price.hourly_usd
    figures = ServiceFigures.steady(RequestTimes.of(simulated.records), report.demand, hourly_usd)
    return compared(ServiceFigures.planned(report, candidate), figures)


def check_plan(report: PlanReport, seed: int = 0) -> tuple[Agreement, ...]:
    """Simulate the chosen configuration; () if none holds the limits or it cannot be simulated."""
    best = report.best
    return (
        ()
        if best is None or why_not_simulated(report, best)
        else agreement(report, best, simulate_candidate(report, best, seed))
    )
