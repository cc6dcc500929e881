"""Rows of the quality table, and those that belong to the contenders of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import OURS, Installed, llama_model
from benchmarks.records import BenchmarkError
from neuronserve.server.typed_json import JsonError, read

LLAMA_CPP = "llama.cpp"
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One format of one model. `file` is llama.cpp's; speeds are tokens/s, 0 if not measured."""

    model: str
    engine: str
    weights: str
    kl: float
    top1: float
    perplexity: float
    file: str = ""
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0

    @property
    def name(self) -> str:
        """Name of the contender."""
        return f"{self.engine} {self.weights}"

    @property
    def shown(self) -> str:
        """KL divergence and top-1 for a table."""
        return f"{self.kl:.4f}, {self.top1:.1%}"


@dataclass(frozen=True, slots=True)
class Record:
    """File that `benchmarks.quality --json` writes."""

    rows: list[Row] = field(default_factory=list)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a record. Raises BenchmarkError for another file."""
    try:
        return read(path, MAX_BYTES, Record).rows
    except JsonError as error:
        raise BenchmarkError(f"{path} {error}") from error


def of_contenders(rows: Sequence[Row], installed: Installed) -> dict[str, Row]:
    """Return the rows of the installed contenders, by name. A checkpoint's name begins with its model's."""
    found = {}
    for row in rows:
        if row.engine == OURS:
            weights = "bfloat16" if installed.quantization == "none" else installed.quantization
            if row.weights == weights and installed.checkpoint.name.startswith(row.model):
                found[OURS] = row
        elif (model := llama_model(installed)) is not None and model.name == row.file:
            found[LLAMA_CPP] = row
    return found
