"""Lengths of requests: ranges of tokens to draw from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neuronserve.server.errors import SettingsError
from neuronserve.server.workload.workload import MAX_TOKENS, IntArray


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Tokens, uniform over `low` to `high`, both included; one fixed length when they are equal."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Raises SettingsError when it is no range of lengths."""
        if not 1 <= self.low <= self.high <= MAX_TOKENS:
            raise SettingsError(
                f"{self.low}:{self.high} is no range of lengths: they rise from at least 1 to at most {MAX_TOKENS}"
            )

    @classmethod
    def parse(cls, text: str, name: str) -> LengthRange:
        """Read "512" or "256:1024". Raises SettingsError that names `name`."""
        low, _, high = text.partition(":")
        try:
            ends = int(low), int(high or low)
        except ValueError:
            raise SettingsError(f"{name} is {text!r}: give a number of tokens, or LOW:HIGH") from None
        try:
            return cls(*ends)
        except SettingsError as error:
            raise SettingsError(f"{name} is {text!r}: {error}") from None

    @classmethod
    def around(cls, mean: int, ratio: float) -> LengthRange:
        """Range from mean * (1 - ratio) to mean * (1 + ratio), at least 1, as `--random-range-ratio` of vLLM."""
        low = max(1, int(mean * (1 - ratio)))
        return cls(low, max(low, int(mean * (1 + ratio))))

    def draw(self, random: np.random.Generator, size: int) -> IntArray:
        """`size` lengths; more of them begin with the same ones."""
        return random.integers(self.low, self.high, size, dtype=np.int64, endpoint=True)
