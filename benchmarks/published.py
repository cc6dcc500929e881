"""Results that are kept in `benchmarks/results`, files of `benchmarks.compare --json` and `benchmarks.quality --json`.

Each ratio becomes one line: how many times as fast this engine is, with what both formats do to a model beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchmarks.peers import OURS
from benchmarks.quality_rows import LLAMA_CPP, Row, read_rows
from benchmarks.records import METRICS, BenchmarkError, Kind
from neuronserve.server.config.formats import Isa
from neuronserve.server.host.isa import ISAS
from neuronserve.server.typed_json import JsonError, read

RESULTS = Path(__file__).parent / "results"
QUALITY = RESULTS / "quality.json"
MAX_BYTES = 1 << 20
_DIGEST = re.compile("-[0-9a-f]{16}$")  # after the name of a GGUF file's directory
EQUAL = 1.1  # formats are of equal quality up to this ratio of KL divergences


@dataclass(frozen=True, slots=True)
class StoredRatio:
    """A ratio as `benchmarks.report` writes it."""

    peer: str
    metric: str
    more_is_better: bool
    median: float
    ours: float
    theirs: float
    low: float = 0.0
    high: float = 0.0
    coverage: float = 0.0  # 0: too few rounds for an interval


@dataclass(frozen=True, slots=True)
class StoredCase:
    """A case of a comparison."""

    case: str
    kind: Kind
    ratios: list[StoredRatio]


@dataclass(frozen=True, slots=True)
class Stored:
    """One comparison."""

    date: str
    host: str
    checkpoint: str
    quantization: str
    isa: Isa
    contenders: dict[str, dict[str, str]]
    cases: list[StoredCase]


@dataclass(frozen=True, slots=True)
class Line:
    """One ratio. `times` is above 1 where this engine is ahead, whatever the metric."""

    isa: Isa
    host: str
    date: str  # the day
    model: str
    workload: str
    unit: str
    weights: str
    peer: str
    peer_weights: str
    ours: float
    theirs: float
    times: float
    interval: tuple[float, float] | None
    kl: tuple[float, float] | None  # of both formats; None: not measured

    @property
    def compared(self) -> tuple[str, str, str]:
        """Names of what is compared: model and weights, workload, and the peer with its weights."""
        return f"{self.model} {self.weights}", self.workload, f"{self.peer} {self.peer_weights}"

    @property
    def is_equal_quality(self) -> bool:
        """Whether this engine's format is about as near to the model as the peer's, or nearer."""
        return self.kl is not None and self.kl[0] <= EQUAL * self.kl[1]


def published(folder: Path = RESULTS) -> list[Line]:
    """Return all lines, the best instruction set first. Raises BenchmarkError for a file of another form."""
    divergences = {row.name: row.kl for row in reversed(read_rows(folder / QUALITY.name))}  # the first model's
    files = sorted(set(folder.glob("*.json")) - {folder / QUALITY.name})
    lines = [line for file in files for line in _lines(_stored(file), divergences)]
    return sorted(lines, key=_order)


def quality(folder: Path = RESULTS) -> list[Row]:
    """Return the rows of the quality table, for each model the best format first."""
    rows = read_rows(folder / QUALITY.name)
    models = list(dict.fromkeys(row.model for row in rows))
    return sorted(rows, key=lambda row: (models.index(row.model), row.kl))


def by_level(lines: Sequence[Line]) -> Mapping[Isa, list[Line]]:
    """Return the lines of each instruction set."""
    return {isa: found for isa in ISAS if (found := [line for line in lines if line.isa == isa])}


def _order(line: Line) -> tuple[int, str, int, str, str]:
    """Return the place of a line: by level, then `http 8` before `http 16`."""
    model, workload, peer = line.compared
    return ISAS.index(line.isa), model, len(workload), workload, peer


def _stored(file: Path) -> Stored:
    try:
        return read(file, MAX_BYTES, Stored)
    except JsonError as error:
        raise BenchmarkError(f"{file.name} {error}") from error


def _lines(stored: Stored, divergences: Mapping[str, float]) -> Iterator[Line]:
    for case in stored.cases:
        units = {metric.name: metric.label for metric in METRICS[case.kind]}
        for ratio in case.ratios:
            about = stored.contenders.get(f"{ratio.peer}, {case.kind}", {})
            weights = about.get("weights", "").rpartition(" ")[2] or "-"
            both = divergences.get(f"{OURS} {stored.quantization}"), divergences.get(f"{LLAMA_CPP} {weights}")
            yield Line(
                stored.isa,
                stored.host.rpartition(", ")[2],
                stored.date[:10],
                _DIGEST.sub("", stored.checkpoint),
                case.case,
                units[ratio.metric],
                stored.quantization,
                ratio.peer,
                weights,
                ratio.ours,
                ratio.theirs,
                ratio.median if ratio.more_is_better else 1 / ratio.median,
                _interval(ratio),
                None if None in both else cast(tuple[float, float], both),
            )


def _interval(ratio: StoredRatio) -> tuple[float, float] | None:
    if not ratio.coverage:
        return None
    return (ratio.low, ratio.high) if ratio.more_is_better else (1 / ratio.high, 1 / ratio.low)
