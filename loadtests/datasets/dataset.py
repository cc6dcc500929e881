"""Sessions of a run from a dataset's name. Long sessions are left out and counted.

Lengths, shared prefixes and recorded arrivals come from `workload/`, so a simulation of the same settings has
the same requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

from ...server.errors import SettingsError
from ...workload.arrivals import Arrivals
from ...workload.lengths import LengthRange
from ...workload.sharegpt import sharegpt_workload
from ...workload.synthetic import SyntheticWorkload
from ...workload.traces import TraceFormat, read_trace
from ...workload.workload import Workload
from ..errors import DatasetError
from ..prompts import IdPrompt, Session
from ..specs import DatasetName, DatasetSpec
from ..vocabulary import Vocabulary
from .own_jsonl import own_sessions
from .token_prompts import multi_turn_sessions, workload_sessions

FORMATS: dict[DatasetName, TraceFormat] = {
    "azure-trace": "azure",
    "burstgpt-trace": "burstgpt",
    "csv-trace": "csv",
    "mooncake-trace": "mooncake",
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """Sessions of a run, and the number of left-out ones."""

    sessions: tuple[Session, ...]
    num_left_out: int  # sessions longer than max_total_len

    @property
    def has_timestamps(self) -> bool:
        return self.sessions[0].arrival_s is not None


def make_dataset(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> Dataset:
    """Return the same sessions for the same seed. Raises DatasetError, also if no session is short enough."""
    try:
        sessions = _maker(spec.dataset_name)(spec, vocabulary, seed)
    except SettingsError as error:
        raise DatasetError(str(error)) from error
    kept = [s for s in sessions if spec.max_total_len is None or total_len(s) <= spec.max_total_len]
    if not kept:
        shortest = min(map(total_len, sessions))
        raise DatasetError(f"max_total_len is {spec.max_total_len}: the shortest session has {shortest} tokens")
    return Dataset(tuple(kept), len(sessions) - len(kept))


def total_len(session: Session) -> int:
    """Return the known tokens of a session with its responses."""
    return sum(
        (len(turn.prompt) if isinstance(turn.prompt, IdPrompt) else 0) + (turn.output_len or 0)
        for turn in session.turns
    )


def dataset_path(spec: DatasetSpec) -> Path:
    """Return the file of a dataset. Raises DatasetError if none was given."""
    if spec.dataset_path is None:
        raise DatasetError(f"dataset {spec.dataset_name} reads a file: give dataset_path")
    return Path(spec.dataset_path)


def _maker(name: DatasetName) -> Callable[[DatasetSpec, Vocabulary, int], list[Session]]:
    return {"multi-turn": multi_turn_sessions, "jsonl": _own_sessions}.get(name, _workload_sessions)


def _own_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    del vocabulary, seed
    return own_sessions(spec, dataset_path(spec))


def _workload_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    if spec.dataset_name in FORMATS:
        trace = read_trace(dataset_path(spec), FORMATS[spec.dataset_name], spec.num_prompts)
        return workload_sessions(trace.at_scale(spec.length_scale), vocabulary, seed, has_arrivals=True)
    return workload_sessions(_drawn(spec, seed), vocabulary, seed)


def _drawn(spec: DatasetSpec, seed: int) -> Workload:
    """Return the requests of a seed, all at time 0: the schedule decides when they are sent."""
    if spec.dataset_name == "sharegpt":
        return sharegpt_workload(spec.num_prompts, seed).at_scale(spec.length_scale)
    return SyntheticWorkload(
        spec.num_prompts,
        Arrivals(inf),
        LengthRange.around(spec.random_input_len, spec.random_range_ratio),
        LengthRange.around(spec.random_output_len, spec.random_range_ratio),
        spec.prefix_len,
        spec.num_prefixes,
        seed,
    ).generate()
