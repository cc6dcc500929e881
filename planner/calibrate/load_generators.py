"""Load generators of the published load tests: how they send requests.

llmperf as of spring 2024 (token_benchmark_ray.py) sends waves: one request for each user, one launch after another, and
no more until all are answered. Other tools' users send again after each answer. guidellm sends for two minutes, at a
rate or with a number of users, and counts the answers of that time. Requested lengths have a standard deviation of 20.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import exp, inf, sqrt

import numpy as np

from ...workload.arrivals import Arrivals
from ...workload.workload import IntArray, Workload
from .published import PublishedRow

LENGTH_SD = 20.0
WINDOW_S = 120.0  # of guidellm
WAVES = 8  # of the published llmperf runs: benchmark.sh sends eight requests for each user
ENOUGH = 512  # requests of simulated waves; waves are alike
USERS = 128  # of guidellm if a row does not state them
SEED = 7

_RATE = re.compile(r"^(asynchronous|constant)@([\d.]+)")


@dataclass(frozen=True, slots=True)
class Clients:
    """Coefficients of clients, fitted with the stacks. A fit starts at the defaults."""

    spacing_s: float = 0.1  # llmperf's work between two launches of a wave
    stop_rate: float = 1e-3  # probability that an answer to llmperf ends at a token before its limit
    draw_s: float = 5e-9  # added for each logit that a host samples if clients do not ask for the likeliest token


@dataclass(frozen=True, slots=True)
class LoadTest:
    """Arrivals of a load test. Users send again after an answer; without users, requests arrive at a rate."""

    users: int | None = None
    rate: float | None = None  # requests a second
    is_poisson: bool = False  # else evenly spaced
    is_waves: bool = False  # users wait for each other

    @classmethod
    def of(cls, row: PublishedRow) -> LoadTest | None:
        """Return the load test of a row; None if it is none of a known kind."""
        arrival, users = row.label("arrival"), row.counts.get("concurrency")
        found = _RATE.match(arrival)
        if found and float(found[2]) > 0:
            return cls(rate=float(found[2]), is_poisson=found[1] == "asynchronous")
        if arrival == "synchronous":
            return cls(users=1)
        if arrival == "throughput":
            return cls(users=users or USERS)
        if arrival.startswith("closed loop") and users:
            return cls(users=users, is_waves=is_llmperf(row))
        return None

    @property
    def num_waves(self) -> int:
        """Number of waves to simulate; 0 for other tests."""
        return max(2, min(WAVES, ENOUGH // (self.users or 1))) if self.is_waves else 0

    def workload(
        self, answers: OutputLengths, most_per_s: float, clients: Clients, seed: int, window_s: float = WINDOW_S
    ) -> Workload:
        """Return the requests of one wave, or all requests of the window if `most_per_s` are answered a second."""
        random = np.random.default_rng((SEED, seed))
        if self.is_waves:
            size, arrivals = self.users or 1, Arrivals(1 / clients.spacing_s, burstiness=inf)
        elif self.rate is None:
            size, arrivals = (self.users or 1) + int(window_s * most_per_s), Arrivals(inf)
        else:
            size = max(1, int(window_s * self.rate))
            arrivals = Arrivals(self.rate, burstiness=1.0 if self.is_poisson else inf)
        arrival_ns = arrivals.times_ns(random, size)
        lengths = answers.draw(random, size)
        return Workload("load test", arrival_ns, np.full(size, answers.prompt, dtype=np.int64), lengths)


def is_llmperf(row: PublishedRow) -> bool:
    """Return whether a row's source, statistics or notes name llmperf."""
    return any("llmperf" in row.label(name) for name in ("source_group", "tpot_stat", "notes"))


def is_window_known(row: PublishedRow) -> bool:
    """Return whether the length of a row's test is known: the sources of this group state their guidellm command."""
    return is_llmperf(row) or row.label("source_group").startswith("hf-optimum")


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """Lengths of outputs: the requested length, and the probability of each token to be the last before it."""

    prompt: int
    requested: int
    stop_rate: float

    @classmethod
    def of(cls, row: PublishedRow, clients: Clients) -> OutputLengths:
        """Return the lengths of a row. Their mean follows from tokens and requests a second if the row has both."""
        requested, measures = row.counts["output_len"], row.measures
        per_s = measures.get("req_per_s", 0.0)
        if per_s > 0:
            return cls(
                row.counts["input_len"], requested, stop_rate(requested, measures.get("output_tok_s", 0.0) / per_s)
            )
        return cls(row.counts["input_len"], requested, clients.stop_rate if is_llmperf(row) else 0.0)

    @property
    def mean(self) -> float:
        """Mean tokens of an output."""
        rate = self.stop_rate
        return (1 - exp(-rate * self.requested)) / rate if rate else float(self.requested)

    def draw(self, random: np.random.Generator, size: int) -> IntArray:
        """Draw `size` lengths of at least one token."""
        lengths = random.normal(self.requested, min(LENGTH_SD, self.requested / 4), size)
        stops = random.exponential(1.0, size)
        if self.stop_rate:
            lengths = np.minimum(lengths, stops / self.stop_rate)
        return np.maximum(1, np.rint(lengths)).astype(np.int64)


def stop_rate(requested: int, mean: float) -> float:
    """Return the stop probability per token that gives outputs of at most `requested` tokens the mean `mean`."""
    if not 1 <= mean < 0.985 * requested:
        return 0.0
    low, high = 1e-9, 1.0
    for _ in range(60):
        middle = sqrt(low * high)
        is_longer = (1 - exp(-middle * requested)) / middle > mean
        low, high = (middle, high) if is_longer else (low, middle)
    return low
