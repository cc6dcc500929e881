"""Sample of a large simulation: some of many equal slices of its replicas and requests, and how far they may be off.

A slice is a cell of the deployment: it has a router of its own, and each request goes to any cell with equal chance, so
its arrivals are a Poisson process too. For a deployment of cells the sample is exact up to chance, which the interval
has. One router in front of all replicas would wait less: `--sample` with fewer, larger slices shows how much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...server.cost.spread import student_p975
from ...server.errors import SettingsError
from .options import SimulationOptions
from .simulator import run_simulation

CONFIDENCE = 0.95  # as student_p975
_FORM = re.compile(r"(\d{1,6})/(\d{1,6})")
# Figures of a report that are sums over requests or replicas; others are means, shares and quantiles.
SUMS = frozenset(
    {"completed", "failed", "total_input_tokens", "total_output_tokens", "total_cached_tokens", "num_preemptions"}
    | {"request_throughput", "request_goodput", "output_throughput", "total_token_throughput"}
    | {"total_usd", "attributed_usd", "idle_usd", "replica_hours", "spot_hours", "moved_requests", "moved_tokens"}
    | {"launches", "terminations", "mean_ready_replicas", "slo_misses", "slo_misses_while_starting"}
)
PARTS = ("ends", "refused")  # sums by reason
RATIOS = ("usd_per_million", "mean_decode")


class Estimate(NamedTuple):
    """A figure of the whole deployment: the true one is within `half` of it with CONFIDENCE."""

    value: float
    half: float


@dataclass(frozen=True, slots=True)
class Sample:
    """`num_slices` of `num_all` equal slices."""

    num_slices: int
    num_all: int

    @classmethod
    def parse(cls, text: str) -> Sample:
        """Read SLICES/ALL. Raises SettingsError unless at least two of the slices are simulated."""
        found = _FORM.fullmatch(text)
        sample = cls(*map(int, found.groups())) if found else cls(0, 0)
        if not 2 <= sample.num_slices <= sample.num_all:
            raise SettingsError(f"sample is {text!r}: it is SLICES/ALL, with at least 2 SLICES and at most ALL")
        return sample

    def share(self, name: str, count: int) -> int:
        """Return a slice's part of a count. Raises SettingsError if the slices would not be equal."""
        if count % self.num_all:
            raise SettingsError(f"{name} is {count}: it is no multiple of the {self.num_all} slices of sample")
        return count // self.num_all

    def seed(self, seed: int, number: int) -> int:
        """Return the seed of a slice, independent of the others."""
        return int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1, np.uint64)[0] >> 1)

    def estimate(self, name: str, values: list[float]) -> Estimate:
        """Return a figure of the whole by those of the slices, with Student's t for how few of all they are."""
        scale = self.num_all if _is_sum(name) else 1
        rest = 1 - self.num_slices / self.num_all
        quantile = student_p975(len(values) - 1)
        half = quantile * float(np.std(values, ddof=1)) * (rest / len(values)) ** 0.5
        return Estimate(float(np.mean(values)) * scale, half * scale)


def run_sample(sample: Sample, slices: Iterable[SimulationOptions]) -> dict[str, Estimate]:
    """Simulate the slices; return the figures that each of them has, by name. Raises the errors of `run_simulation`."""
    found = [_figures(run_simulation(options).as_json()) for options in slices]
    names = dict.fromkeys(name for each in found for name in each)
    return {
        name: sample.estimate(name, [each.get(name, 0.0) for each in found])
        for name in names
        if name.startswith(PARTS) or all(name in each for each in found)
    }


def _figures(report: dict[str, Any]) -> dict[str, float]:
    """Return what was measured, with the report's names; counts by reason are named `refused: REASON`."""
    flat = report | (report["autoscaling"] or {}) | (report["failures"] or {})
    flat |= {f"{name}_attainment": limit["attainment"] for name, limit in report["slo"].items()}
    flat |= {f"{part}: {reason}": count for part in PARTS for reason, count in flat.get(part, {}).items()}
    return {name: float(value) for name, value in flat.items() if isinstance(value, int | float) and _is_figure(name)}


def _is_figure(name: str) -> bool:
    return _is_sum(name) or name == "utilization" or name.startswith(RATIOS) or name.endswith(("_ms", "_attainment"))


def _is_sum(name: str) -> bool:
    return name in SUMS or name.startswith(PARTS)
