"""The recommended row is simulated before it is recommended. One that misses a limit gets more instances, or is passed.

Formulas (queueing.py) choose among thousands of rows; the scheduler itself decides about the first. Step times are the
predicted ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, sqrt

import numpy as np

from ...server.config.disaggregation import Disaggregation
from ...workload.slo import Slo
from ...workload.workload import FloatArray
from ..simulate.comparison import Comparison
from ..simulate.simulator import run_simulation
from .check import simulation_of, why_not_simulated
from .report import Candidate, PlanReport, Simulated, SimulatedTimes
from .search import resized
from .times import Limit

MOST_SLOTS = 256  # simulated at once: of more instances, a part with its share of the requests
PER_SLOT, LEAST_REQUESTS = 10, 2_000  # requests; the first fifth fills the deployment and is not counted
BLOCKS_A_SLOT = 64  # at most; as small as the server's own, unless slots are long
MORE = (0.1, 0.4)  # shares of instances that a row gets more, one after the other
MOST_SIMULATIONS = 9
STANDARD_ERRORS = 4.0  # by which a simulated figure must keep its limit: requests are few, and neighbours wait alike


def confirmed(report: PlanReport) -> PlanReport:
    """Return the report with a first row that holds the limits in a simulation, if one is found.

    After MOST_SIMULATIONS the first row stays, with what it misses. Raises the errors of `run_simulation`.
    """
    rows, tried = list(report.candidates), dict[tuple[object, ...], int]()
    for left in reversed(range(MOST_SIMULATIONS)):
        first = rows[0]
        if not first.meets_slo or why_not_simulated(report, first):
            break
        found = simulated(report, first)
        rows[0] = replace(first, simulated=found)
        if not found.misses or not left:
            break
        rows[0] = _instead(report, rows[0], tried)
        rows.sort(key=lambda row: row.order(report.options.price_basis))
    return replace(report, candidates=tuple(rows))


def _instead(report: PlanReport, row: Candidate, tried: dict[tuple[object, ...], int]) -> Candidate:
    """Return a row that missed in its simulation with more instances; after the most of them, as one that misses."""
    times = tried.setdefault(row.configuration, 0)
    tried[row.configuration] += 1
    if times == len(MORE) or row.simulated is None:
        return replace(row, misses=() if row.simulated is None else row.simulated.misses)
    return resized(report, row, row.instances + row.instances_per_replica * ceil(MORE[times] * row.places))


def simulated(report: PlanReport, row: Candidate, seed: int = 0) -> Simulated:
    """Serve the plan's workload on a row, or on a part of its instances. Raises the errors of `run_simulation`."""
    places = max(1, min(row.instances, MOST_SLOTS // (row.dp * row.batch)))
    requests = max(LEAST_REQUESTS, PER_SLOT * places * row.dp * row.batch)
    options = simulation_of(report, replace(row, instances=places), seed, places / row.instances, requests)
    # No prompt repeats another. The scheduler keeps a block free for each running sequence, so blocks must be small.
    small = max(options.block_size, options.max_model_len // BLOCKS_A_SLOT)
    options = replace(options, enable_prefix_caching=False, block_size=small)
    found = run_simulation(options)
    times = {"TTFT": _steady(found.ttft_ms), "TPOT": _steady(found.tpot_ms)}
    return Simulated(
        ttft_s=_spread(times["TTFT"]),
        tpot_s=_spread(times["TPOT"]),
        requests=len(options.workload),
        instances=places,
        used={
            limit.name: _surely(limit, times[limit.figure]) / limit.seconds
            for limit in report.options.limits
            if len(times[limit.figure])
        },
    )


def divided(report: PlanReport, parts: Disaggregation) -> Comparison:
    """Serve the plan's workload on instances of the first row, divided and not, at the load that the row gives them.

    One engine of each instance is simulated, with its share of link and price. Raises the errors of `run_simulation`.
    """
    row = report.candidates[0]
    requests, share = max(LEAST_REQUESTS, PER_SLOT * parts.total * row.batch), parts.total / (row.instances * row.dp)
    options = simulation_of(report, replace(row, instances=parts.total, dp=1), 0, share, requests)
    limits = sorted(report.options.limits, key=lambda each: -each.seconds)  # of each figure, the least counts
    slo = Slo(**{f"{each.figure.lower()}_ms": each.seconds * 1e3 for each in limits})
    options = replace(options, disaggregate=parts, slo=slo, usd_per_hour=options.hourly_usd / row.dp)
    return Comparison.of(run_simulation(options))


def _steady(milliseconds: FloatArray) -> FloatArray:
    return milliseconds[len(milliseconds) // 5 :] / 1e3


def _spread(seconds: FloatArray) -> SimulatedTimes:
    if not len(seconds):
        return SimulatedTimes(0.0, 0.0, 0.0, 0.0)
    p50, p95, p99 = (float(each) for each in np.percentile(seconds, (50, 95, 99)))
    return SimulatedTimes(float(seconds.mean()), p50, p95, p99)


def _surely(limit: Limit, seconds: FloatArray) -> float:
    """Return the limited figure plus its standard errors: of a mean, or of the rank of a quantile."""
    if limit.share is None:
        return float(seconds.mean() + STANDARD_ERRORS * seconds.std() / sqrt(len(seconds)))
    more = STANDARD_ERRORS * sqrt(limit.share * (1 - limit.share) / len(seconds))
    return float(np.quantile(seconds, limit.share + min(more, (1 - limit.share) / 2)))
