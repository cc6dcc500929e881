"""Times of single steps from load-test reports: of a lone prompt, and of a decode step with busy slots.

The input is the JSON of `neuronserve bench serve`. A figure that is not the time of a step is left out with the reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...server.cost.evidence import Phase
from ...server.errors import SettingsError
from ...server.typed_json import JsonError, convert, read
from .deployment import Deployment

MAX_REPORT_BYTES = 64 * 2**20
BUNDLED = 0.7  # share of the gap between chunks: a lower time per token means several tokens in a chunk
ALONE = 1.05  # mean open requests up to which requests hardly overlap


@dataclass(frozen=True, slots=True)
class Observation:
    """A median time. `positions`: the prompt's bucket for a prefill; the positions read of each slot for a decode."""

    phase: Phase
    positions: int
    busy: float  # slots of one engine in use; 1 for a prefill
    slots: int  # that the step computes; 1 for a prefill
    seconds: float
    num_measured: int  # requests or steps of the median

    @property
    def name(self) -> str:
        """Name such as `decode, 8 busy, 2,048 positions`."""
        busy = f", {self.busy:.3g} busy" if self.phase == "decode" else ""
        return f"{self.phase}{busy}, {self.positions:,} positions"


@dataclass(frozen=True, slots=True)
class Observations:
    """Observations of all reports, and the reasons for figures that were left out."""

    used: tuple[Observation, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Spread:
    p1: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class _Record:
    input_tokens: _Spread | None = None
    output_tokens: _Spread | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    """Fields of one run that are used here."""

    completed: int
    failed: int
    request_rate: float | Literal["inf"]
    max_concurrency: int | None
    mean_concurrency: float
    total_cached_input_tokens: int
    total_output_tokens: int
    median_ttft_ms: float | None
    median_itl_ms: float | None
    median_tpot_ms: float | None
    benchmark_record: _Record = field(default_factory=_Record)

    @property
    def num_open(self) -> float:
        """Requests open at once."""
        if self.request_rate == "inf" and self.max_concurrency is not None:
            return min(self.max_concurrency, self.completed)
        return self.mean_concurrency


def read_report(path: Path) -> list[dict[str, Any]]:
    """Return the runs in a report of `bench serve`: one, or those of a sweep. Raises SettingsError for another file."""
    try:
        report = read(path, MAX_REPORT_BYTES, dict[str, Any])
        return convert(report.get("points", [report]), list[dict[str, Any]])
    except JsonError as error:
        raise SettingsError(f"report {str(path)!r}: {error}") from error


def observations(runs: list[tuple[str, dict[str, Any]]], deployment: Deployment) -> Observations:
    """Return the observations of named runs. Raises SettingsError for a run that is no report of `bench serve`."""
    used: list[Observation] = []
    left_out: list[str] = []
    for name, run in runs:
        try:
            found = convert(run, _Run)
        except JsonError as error:
            raise SettingsError(f"{name} is no report of `neuronserve bench serve`: {error}") from error
        for each in (_prefill(found, deployment), _decode(found, deployment)):
            if isinstance(each, str):
                left_out.append(f"{name}: {each}")
            else:
                used.append(each)
    return Observations(tuple(used), tuple(left_out))


def _prefill(run: _Run, deployment: Deployment) -> Observation | str:
    """Return the TTFT of lone requests, or why there is none."""
    lengths, ttft = run.benchmark_record.input_tokens, run.median_ttft_ms
    if lengths is None or not ttft:
        return "no TTFT: no request was completed"
    if run.num_open > ALONE:
        return f"TTFT left out: with {run.num_open:.3g} requests open at once it holds their waiting"
    if run.total_cached_input_tokens:
        return "TTFT left out: some prompt tokens were cached"
    least, bucket = (deployment.prompt_bucket(math.ceil(tokens)) for tokens in (lengths.p1, lengths.p99))
    if least != bucket:
        return f"TTFT left out: prompts are padded to {least} and to {bucket} tokens"
    return Observation("prefill", bucket, 1, 1, ttft / 1e3, run.completed)


def _decode(run: _Run, deployment: Deployment) -> Observation | str:
    """Return the gap between tokens, or why it is not the time of a step."""
    record, itl, tpot = run.benchmark_record, run.median_itl_ms, run.median_tpot_ms
    if record.input_tokens is None or record.output_tokens is None or not itl or not tpot:
        return "no time between tokens: no answer has two"
    if tpot < BUNDLED * itl and run.num_open <= ALONE:
        itl = tpot  # no other request's prompt is in it
    if tpot < BUNDLED * itl:
        return f"ITL left out: {itl:.3g} ms between chunks and {tpot:.3g} ms a token: chunks carry several tokens"
    contexts = record.input_tokens.p1 + 1, record.input_tokens.p99 + record.output_tokens.p99
    least, bucket = (deployment.step_bucket(math.ceil(tokens)) for tokens in contexts)
    if least != bucket:
        return f"ITL left out: steps read {least} to {bucket} positions"
    busy = max(1.0, min(run.num_open / deployment.data_parallel_size, deployment.max_num_seqs))
    num_steps = max(1, round((run.total_output_tokens - run.completed) / busy))
    return Observation("decode", bucket, busy, deployment.step_slots(math.ceil(busy)), itl / 1e3, num_steps)
