"""A dataset by its name, made into the sessions of a run; what is too long is left out and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loadtests.datasets.azure_trace import azure_sessions
from loadtests.datasets.mooncake_trace import mooncake_sessions
from loadtests.datasets.multi_turn import multi_turn_sessions
from loadtests.datasets.own_jsonl import own_sessions
from loadtests.datasets.random_lengths import random_sessions
from loadtests.datasets.sharegpt import sharegpt_sessions
from loadtests.errors import DatasetError
from loadtests.prompts import IdPrompt, Session
from loadtests.specs import DatasetName, DatasetSpec
from loadtests.vocabulary import Vocabulary

Maker = Callable[[DatasetSpec, Vocabulary, int], list[Session]]

MAKERS: dict[DatasetName, Maker] = {
    "random": random_sessions,
    "prefix": random_sessions,
    "sharegpt": sharegpt_sessions,
    "multi-turn": multi_turn_sessions,
    "azure-trace": azure_sessions,
    "mooncake-trace": mooncake_sessions,
    "jsonl": own_sessions,
}


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run sends."""

    sessions: tuple[Session, ...]
    num_left_out: int  # sessions longer than max_total_len

    @property
    def has_timestamps(self) -> bool:
        return self.sessions[0].arrival_s is not None


def make_workload(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> Workload:
    """The same sessions for the same seed. Raises DatasetError, also when nothing is short enough."""
    sessions = MAKERS[spec.dataset_name](spec, vocabulary, seed)
    kept = [s for s in sessions if spec.max_total_len is None or total_len(s) <= spec.max_total_len]
    if not kept:
        shortest = min(map(total_len, sessions))
        raise DatasetError(f"max_total_len is {spec.max_total_len}: the shortest session has {shortest} tokens")
    return Workload(tuple(kept), len(sessions) - len(kept))


def total_len(session: Session) -> int:
    """Tokens of the whole session with its answers, as far as they are known."""
    return sum(
        (len(turn.prompt) if isinstance(turn.prompt, IdPrompt) else 0) + (turn.output_len or 0)
        for turn in session.turns
    )
