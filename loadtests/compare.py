"""Comparison of two endpoints under the same requests, in interleaved runs, with confidence intervals for the ratios.

Round i sends the same prompts at the same times to both: A first in even rounds and B first in odd ones, so that
neither gets the warmer machine. A round's ratio is one observation; the logarithms are averaged and bootstrapped.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from .errors import EndpointError, SpecError
from .specs import Scenario

RESAMPLES = 10_000
CONFIDENCE = 0.95  # the table below is for this
Result = dict[str, Any]
RunSide = Callable[[Scenario, int, str], Awaitable[Result]]

# Metric -> whether more is better.
COMPARED = {
    "request_throughput": True,
    "output_throughput": True,
    "request_goodput": True,
    "median_ttft_ms": False,
    "p99_ttft_ms": False,
    "median_tpot_ms": False,
    "p99_tpot_ms": False,
    "median_itl_ms": False,
    "median_e2el_ms": False,
    "cost_per_million_output_tokens_usd": False,
}


def check_rounds(rounds: int) -> None:
    """Raise SpecError if there are too few rounds for an interval."""
    if rounds < 2:
        raise SpecError(f"rounds is {rounds}: an interval needs at least 2")


async def compare(sides: tuple[Scenario, Scenario], rounds: int, run_side: RunSide) -> Result:
    """Run `rounds` rounds of both sides. An interrupted run or a lost server ends it; complete rounds count.

    Raises SpecError for too few rounds, and EndpointError if a server was never there.
    """
    check_rounds(rounds)
    done: list[tuple[Result, Result]] = []
    reason: str | None = None
    for number in range(rounds):
        try:
            pair = await _round(sides, number, run_side)
        except EndpointError as error:
            if not done:
                raise
            pair, reason = None, str(error)
        if pair is None:
            return {**compare_result(done, sides), "is_interrupted": True, "ended_by": reason}
        done.append(pair)
    return compare_result(done, sides)


async def _round(sides: tuple[Scenario, Scenario], number: int, run_side: RunSide) -> tuple[Result, Result] | None:
    """Run both sides once, A first in even rounds. Returns None if it was interrupted."""
    pair: dict[int, Result] = {}
    for side in (0, 1) if number % 2 == 0 else (1, 0):
        scenario = sides[side]
        pair[side] = await run_side(scenario, scenario.run.seed + number, f"{'ab'[side]}{number}")
        if pair[side]["is_interrupted"]:
            return None
    return pair[0], pair[1]


def compare_result(done: Sequence[tuple[Result, Result]], sides: tuple[Scenario, Scenario]) -> Result:
    """Return the ratios B / A of every metric that both sides have in every round."""
    complaints = [run["not_publishable_because"] for pair in done for run in pair if not run["is_publishable"]]
    return {
        "kind": "compare",
        "scenario": sides[0].name,
        "labels": [side.run.label or side.endpoint.base_url for side in sides],
        "num_rounds": len(done),
        "is_interrupted": False,
        "is_publishable": not complaints,
        "not_publishable_because": complaints[0] if complaints else None,
        "confidence": CONFIDENCE,
        "ratios": {name: ratio for name in COMPARED if (ratio := ratio_of(name, done)) is not None},
        "runs": [{"a": a, "b": b} for a, b in done],
    }


def ratio_of(name: str, done: Sequence[tuple[Result, Result]]) -> Result | None:
    """Return medians a and b over rounds, the geometric mean of b / a and its interval; None without values."""
    pairs = [(a.get(name), b.get(name)) for a, b in done]
    if not pairs or any(not a or not b for a, b in pairs):
        return None
    values = np.array(pairs, dtype=np.float64)
    ratio, low, high = bootstrap_ratio(values[:, 1] / values[:, 0])
    a, b = np.median(values, axis=0)
    return {"a": float(a), "b": float(b), "ratio": ratio, "low": low, "high": high, "more_is_better": COMPARED[name]}


def bootstrap_ratio(ratios: Any, seed: int = 0) -> tuple[float, float, float]:
    """Return the geometric mean of positive `ratios` `[rounds]`, with its bootstrap interval of CONFIDENCE.

    Percentile intervals of few values are too narrow, so the percentiles move outward by as much as a t interval is
    wider than a normal one (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, section 5.3).
    """
    logs = np.log(ratios)
    n = len(logs)
    generator = np.random.default_rng(seed)
    means = generator.choice(logs, (RESAMPLES, n)).mean(axis=1)
    tail = NormalDist().cdf(-_t_quantile(n - 1) * math.sqrt(n / (n - 1)))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def _t_quantile(degrees: int) -> float:
    """Return the 97.5 % point of Student's t: from the table, or by Cornish and Fisher's expansion to 1/degrees^2."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # of 1, 2, ... degrees of freedom
