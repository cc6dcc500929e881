"""Sweep: the same workload at rates that a bisection chooses, and the knee: the highest rate that meets the SLO.

The cost at the knee is a realistic price of the service; at higher rates answers are too late.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from .errors import EndpointError, SpecError
from .specs import Scenario


class Bisection:
    """Bisection for the highest rate: double until one fails (or halve until one holds), then bisect.

    Try `next_rate` and `note` the outcome, until it is None: the knee is bracketed within the tolerance.
    """

    def __init__(self, start: float, tolerance: float, max_points: int) -> None:
        if not 0 < start < math.inf:
            raise SpecError(f"start_rate is {start:g}: it must be above 0 and finite")
        if not 0 < tolerance < 1:
            raise SpecError(f"tolerance is {tolerance:g}: it must be between 0 and 1")
        if max_points < 1:
            raise SpecError(f"max_points is {max_points}: it must be at least 1")
        self._start, self._tolerance, self._left = start, tolerance, max_points
        self.highest_held: float | None = None
        self.lowest_failed: float | None = None

    def next_rate(self) -> float | None:
        """Return the next rate to try; None at the end."""
        if self._left == 0:
            return None
        held, failed = self.highest_held, self.lowest_failed
        if held is None:
            return self._start if failed is None else failed / 2
        if failed is None:
            return held * 2
        return math.sqrt(held * failed) if failed / held > 1 + self._tolerance else None

    def note(self, rate: float, holds: bool) -> None:
        """Record an outcome. A higher rate may hold by luck where a lower one failed; the failure counts."""
        self._left -= 1
        if holds and (self.lowest_failed is None or rate < self.lowest_failed):
            self.highest_held = max(rate, self.highest_held or 0.0)
        elif not holds:
            self.lowest_failed = min(rate, self.lowest_failed or math.inf)

    @property
    def is_bracketed(self) -> bool:
        """Whether there is a rate that holds and one that does not."""
        return self.highest_held is not None and self.lowest_failed is not None


Point = dict[str, Any]
RunPoint = Callable[[Scenario, int], Awaitable[Point]]

KNEE_KEYS = (
    "request_rate",
    "request_goodput",
    "output_throughput",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "cost_basis",
    "cost_per_million_input_tokens_usd",
    "cost_per_million_output_tokens_usd",
)


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of the bisection over rates."""

    start_rate: float = 1.0
    tolerance: float = 0.1
    max_points: int = 12
    point_duration_s: float = 30.0
    min_prompts: int = 50


def at_rate(scenario: Scenario, rate: float, options: SweepOptions) -> Scenario:
    """Return the scenario at one rate, long enough for both the duration and the number of requests."""
    arrival = scenario.arrival
    process = arrival.arrival if arrival.arrival in {"poisson", "gamma", "constant"} else "auto"
    seconds = max(arrival.duration_s or options.point_duration_s, options.min_prompts / rate)
    changed = msgspec.structs.replace(arrival, arrival=process, request_rate=rate, duration_s=seconds)
    return msgspec.structs.replace(scenario, arrival=changed)


def check_limits(scenario: Scenario) -> None:
    """Raise SpecError without limits, as no rate could fail."""
    if not scenario.slo.is_set:
        raise SpecError("a sweep needs limits: give --goodput ttft:MS tpot:MS, or [slo] in the scenario")


async def sweep(scenario: Scenario, options: SweepOptions, run_point: RunPoint) -> dict[str, Any]:
    """Run points until the knee is known. An interrupted point or a lost server ends it with the points so far.

    Raises SpecError without an SLO, and EndpointError if there never was a server.
    """
    check_limits(scenario)
    bisection = Bisection(options.start_rate, options.tolerance, options.max_points)
    points: list[Point] = []
    while (rate := bisection.next_rate()) is not None:
        # Another seed for each point: a prefix cache must not have the prompts of the last point.
        try:
            point = await run_point(at_rate(scenario, rate, options), scenario.run.seed + len(points))
        except EndpointError as error:
            if not points:
                raise
            return {**sweep_result(points, bisection, scenario), "is_interrupted": True, "ended_by": str(error)}
        points.append(point)
        if point["is_interrupted"]:
            break
        bisection.note(rate, holds(point, scenario))
    return sweep_result(points, bisection, scenario)


def holds(point: Point, scenario: Scenario) -> bool:
    """Return whether enough requests were good. A point with a late generator proves nothing, so it does not hold."""
    return bool(point["is_publishable"]) and (point["good_fraction"] or 0.0) >= scenario.slo.attainment


def sweep_result(points: list[Point], bisection: Bisection, scenario: Scenario) -> dict[str, Any]:
    """Return the knee and all points, by rate."""
    knee = next((p for p in points if p["request_rate"] == bisection.highest_held), None)
    best = max(points, key=lambda point: point["request_goodput"] or -math.inf)
    return {
        "kind": "sweep",
        "scenario": scenario.name,
        "is_interrupted": points[-1]["is_interrupted"],
        "is_bracketed": bisection.is_bracketed,
        "rates_with_a_late_generator": [p["request_rate"] for p in points if not p["is_publishable"]],
        "lowest_failed_rate": bisection.lowest_failed,
        "knee": None if knee is None else {key: knee[key] for key in KNEE_KEYS},
        "max_goodput": {"request_rate": best["request_rate"], "request_goodput": best["request_goodput"]},
        "points": sorted(points, key=lambda point: float(point["request_rate"])),
    }


def cost_by_limit(points: list[Point], latency: str, attainment: float) -> list[tuple[float, float]]:
    """Return (limit in ms, lowest $/1M output tokens of the points that meet it), the steps of a falling curve.

    A point meets a limit if its latency at the percentile nearest above `attainment` is within it.
    """
    percentile = next((p for p in (50, 90, 95, 99) if p >= 100 * attainment), 99)
    name = f"p{percentile}_{latency}_ms"
    pairs = [
        (point[name], point["cost_per_million_output_tokens_usd"])
        for point in points
        if point.get(name) is not None and point["cost_per_million_output_tokens_usd"] is not None
    ]
    curve: list[tuple[float, float]] = []
    for limit, cost in sorted(pairs):
        if not curve or cost < curve[-1][1]:
            curve.append((limit, cost))
    return curve
