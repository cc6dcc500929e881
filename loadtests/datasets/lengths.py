"""Drawing lengths in tokens."""

from __future__ import annotations

import numpy as np


def uniform_lengths(generator: np.random.Generator, mean: int, range_ratio: float, n: int) -> list[int]:
    """`n` lengths, uniform in [mean * (1 - r), mean * (1 + r)], at least 1; all equal when `range_ratio` is 0."""
    low = max(1, int(mean * (1 - range_ratio)))
    high = max(low, int(mean * (1 + range_ratio)))
    return [int(length) for length in generator.integers(low, high + 1, n)]


def scaled(length: int, scale: float) -> int:
    """A trace's length made `scale` times as long, at least 1."""
    return max(1, round(length * scale))
