"""Means and percentiles as load tools print them (linear interpolation), of plain and of counted values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...workload.workload import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, deviation and percentiles of values, in their unit; all 0 for no values."""

    mean: float = 0.0
    median: float = 0.0
    std: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, values: FloatArray) -> Spread:
        """Return the spread of plain values."""
        if not len(values):
            return cls()
        median, *tail = (float(figure) for figure in np.percentile(values, (50, 90, 95, 99)))
        return cls(float(np.mean(values)), median, float(np.std(values)), *tail)

    @classmethod
    def of_counts(cls, counts: Mapping[int, int], scale: float) -> Spread:
        """Return the spread of counted values times `scale`; equals `of` over the repeated values."""
        if not counts:
            return cls()
        values = np.array(sorted(counts), dtype=np.float64) * scale
        weights = np.array([counts[value] for value in sorted(counts)], dtype=np.int64)
        mean = float(np.average(values, weights=weights))
        std = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
        ends = np.cumsum(weights)
        median, *tail = (_quantile(values, ends, share) for share in (0.50, 0.90, 0.95, 0.99))
        return cls(mean, median, std, *tail)

    def within(self, limit: float) -> dict[str, bool]:
        """Return for each figure whether it is at most `limit`."""
        figures = {"mean": self.mean, "p50": self.median, "p90": self.p90, "p95": self.p95, "p99": self.p99}
        return {name: figure <= limit for name, figure in figures.items()}

    def as_json(self, name: str) -> dict[str, float]:
        """Return the figures with the keys of `vllm bench serve`, such as mean_ttft_ms for "ttft"."""
        return {
            f"mean_{name}_ms": self.mean,
            f"median_{name}_ms": self.median,
            f"std_{name}_ms": self.std,
            f"p90_{name}_ms": self.p90,
            f"p95_{name}_ms": self.p95,
            f"p99_{name}_ms": self.p99,
        }


def _quantile(values: FloatArray, ends: IntArray, share: float) -> float:
    """Return a quantile; `ends[i]` values are at most `values[i]`."""
    place = share * (int(ends[-1]) - 1)
    low = int(place)
    below, above = (
        float(values[np.searchsorted(ends, rank, side="right")]) for rank in (low, min(low + 1, ends[-1] - 1))
    )
    return below + (above - below) * (place - low)
