"""Lengths of requests to draw from: ranges of tokens, and pairs of prompt and answer from a file."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..server.errors import SettingsError
from .trace_file import TraceFile, require_tokens
from .workload import MAX_TOKENS, IntArray


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Lengths in tokens, uniform from `low` to `high`, both included; a fixed length when both are equal."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Raise SettingsError for an impossible range."""
        if not 1 <= self.low <= self.high <= MAX_TOKENS:
            raise SettingsError(
                f"{self.low}:{self.high} is no range of lengths: both must be 1 to {MAX_TOKENS}, in order"
            )

    @classmethod
    def parse(cls, text: str, name: str) -> LengthRange:
        """Read "512" or "256:1024". Raises SettingsError, naming `name`."""
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
        """Return the range mean * (1 - ratio) to mean * (1 + ratio), at least 1, as `--random-range-ratio` of vLLM."""
        low = max(1, int(mean * (1 - ratio)))
        return cls(low, max(low, int(mean * (1 + ratio))))

    def draw(self, random: np.random.Generator, size: int) -> IntArray:
        """Return `size` lengths; a longer list begins with the same ones."""
        return random.integers(self.low, self.high, size, dtype=np.int64, endpoint=True)


# Vidur publishes the lengths of ShareGPT and other data sets with these columns, beside others, and without times
# (github.com/microsoft/vidur, data/processed_traces).
COLUMNS = ("num_prefill_tokens", "num_decode_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class LengthTable:
    """Pairs of prompt and answer to draw from, each equally likely."""

    name: str
    input_len: IntArray  # [n], at least 1
    output_len: IntArray  # [n], at least 1

    def draw(self, random: np.random.Generator, size: int) -> tuple[IntArray, IntArray]:
        """Return `[size]` prompts and `[size]` answers in pairs; a longer list begins with the same ones."""
        places = random.integers(len(self.input_len), size=size)
        return self.input_len[places], self.output_len[places]


def read_lengths(path: Path) -> LengthTable:
    """Read the pairs of a file. Raises SettingsError, with the line number, for an invalid line."""
    file = TraceFile(path)
    inputs, outputs = array("q"), array("q")
    for number, cells in file.table(file.lines(), COLUMNS):
        with file.refusing(number):
            num_input, num_output = (require_tokens(name, int(cell)) for name, cell in zip(COLUMNS, cells, strict=True))
        inputs.append(num_input)
        outputs.append(num_output)
    file.require_any(len(inputs))
    return LengthTable(path.name, np.array(inputs, dtype=np.int64), np.array(outputs, dtype=np.int64))
