"""Options of the bench commands, which the command line can read without loading an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config.formats import WeightFormat

MeasuredFormat = WeightFormat | Literal["auto"]  # auto: the format of the files


@dataclass(frozen=True, slots=True)
class Drawing:
    """Sampling of each token, as in a request; greedy by default."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    grammar: str = ""  # that the output must follow, in the form of SamplingParams


@dataclass(frozen=True, slots=True)
class BatchShape:
    """`batch_size` sequences at once, lengths in tokens."""

    batch_size: int
    input_len: int
    output_len: int
    drawing: Drawing = Drawing()
    context_len: int = 0  # tokens before the prompt, found in the prefix cache; whole blocks

    @property
    def total_len(self) -> int:
        """Tokens of a finished sequence."""
        return self.context_len + self.input_len + self.output_len


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """Number of measurements, and the files for results."""

    num_iters: int
    seed: int
    json_file: Path | None
    trace_file: Path | None = None  # records one more run of the first shape
    trace_max_events: int = 500_000


@dataclass(frozen=True, slots=True)
class ThroughputOptions:
    """Number of sequences (None: one batch) and of measurements, and the file for results."""

    num_prompts: int | None
    num_iters: int
    seed: int
    json_file: Path | None


@dataclass(frozen=True, slots=True)
class AccuracyOptions:
    """Text, number of its tokens to use, and the formats to compare with float32."""

    text_file: Path
    num_tokens: int
    window_len: int
    formats: tuple[MeasuredFormat, ...]
    json_file: Path | None
