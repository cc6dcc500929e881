"""Plan of a scenario: sessions, schedule and warm-up. It may read trace files."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import msgspec

from ..server.clock import NS
from ..server.errors import SettingsError
from ..workload.arrivals import Arrivals
from ..workload.synthetic import random_stream
from .datasets.dataset import Dataset, make_dataset
from .driver import Schedule
from .errors import SpecError
from .prompts import ChatPrompt, Session, num_requests
from .specs import ArrivalProcess, ArrivalSpec, DatasetSpec, Scenario
from .vocabulary import TokenizerVocabulary, Vocabulary

WARMUP_CONCURRENCY = 4
_WARMUP_DRAWS = 16  # drawn for each sent one, if long ones are left out
_WARMUP_SEED = 1_000_003  # added to the seed, so that a prefix cache has no prompts of the run


@dataclass(frozen=True, slots=True)
class Plan:
    """Inputs of a run except the server. The same seed gives the same prompts at the same times."""

    seed: int
    vocabulary: Vocabulary
    dataset: Dataset
    schedule: Schedule
    warmup: tuple[Session, ...]
    arrival: ArrivalProcess  # `auto` is resolved

    @property
    def num_requests(self) -> int:
        """Number of requests, if the run does not end early."""
        return num_requests(self.dataset.sessions)


def make_plan(scenario: Scenario, seed: int) -> Plan:
    """Make the plan of a scenario. Raises SpecError or DatasetError."""
    spec, arrival = scenario.dataset, scenario.arrival
    path = scenario.endpoint.tokenizer
    vocabulary = Vocabulary() if path is None else TokenizerVocabulary(Path(path))
    if arrival.duration_s is not None and arrival.request_rate < math.inf and arrival.arrival in {"auto", *_RATED}:
        spec = _for_duration(spec, arrival)
    dataset = make_dataset(spec, vocabulary, seed)
    _check_prompts(scenario, dataset)
    process = _resolve(arrival, dataset)
    try:
        schedule = _schedule(process, arrival, dataset, seed)
    except SettingsError as error:
        raise SpecError(str(error)) from error
    return Plan(seed, vocabulary, dataset, schedule, _warmup(scenario, vocabulary), process)


_RATED: dict[ArrivalProcess, Callable[[ArrivalSpec], Arrivals]] = {
    "poisson": lambda spec: Arrivals(spec.request_rate),
    "gamma": lambda spec: Arrivals(spec.request_rate, spec.burstiness),
    "constant": lambda spec: Arrivals(spec.request_rate, math.inf),
}


def _for_duration(spec: DatasetSpec, arrival: ArrivalSpec) -> DatasetSpec:
    """Return the dataset with the number of requests in the duration."""
    turns = spec.num_turns if spec.dataset_name == "multi-turn" else 1
    num_sessions = max(1, math.ceil(arrival.request_rate * (arrival.duration_s or 0)))
    return msgspec.structs.replace(spec, num_prompts=num_sessions * turns)


def _resolve(spec: ArrivalSpec, dataset: Dataset) -> ArrivalProcess:
    if spec.arrival != "auto":
        return spec.arrival
    if spec.request_rate < math.inf:
        return "poisson" if spec.burstiness == 1.0 else "gamma"
    if dataset.has_timestamps:
        return "trace"
    return "closed" if spec.max_concurrency is not None else "burst"


def _schedule(process: ArrivalProcess, spec: ArrivalSpec, dataset: Dataset, seed: int) -> Schedule:
    if process == "closed":
        if spec.max_concurrency is None:
            raise SpecError("arrival is 'closed': max_concurrency must say how many requests are open at once")
        return Schedule(None, spec.max_concurrency, spec.duration_s)
    if process == "trace":
        offsets = _recorded(dataset, spec.trace_speed)
    else:
        times_ns = _arrivals(process, spec).times_ns(random_stream(seed, "arrivals"), len(dataset.sessions))
        offsets = (times_ns / NS).tolist()
    return Schedule(offsets, spec.max_concurrency, None if process in _RATED else spec.duration_s)


def _arrivals(process: ArrivalProcess, spec: ArrivalSpec) -> Arrivals:
    if process in _RATED:
        if spec.request_rate == math.inf:
            raise SpecError(f"arrival is {process!r}: request_rate must be finite")
        return _RATED[process](spec)
    if process == "ramp":
        if spec.ramp_up_start_rps is None or spec.ramp_up_end_rps is None:
            raise SpecError("arrival is 'ramp': ramp_up_start_rps and ramp_up_end_rps are needed")
        return Arrivals(spec.ramp_up_start_rps, end_rate=spec.ramp_up_end_rps, ramp=spec.ramp_up_strategy)
    return Arrivals(math.inf)


def _recorded(dataset: Dataset, speed: float) -> list[float]:
    """Return the dataset's own arrivals, in seconds from the first."""
    if not dataset.has_timestamps:
        raise SpecError("arrival is 'trace': the dataset has no timestamps")
    times = [session.arrival_s or 0.0 for session in dataset.sessions]
    return [(time - times[0]) / speed for time in times]


def _warmup(scenario: Scenario, vocabulary: Vocabulary) -> tuple[Session, ...]:
    n = scenario.run.num_warmups
    if not n:
        return ()
    draws = 1 if scenario.dataset.max_total_len is None else _WARMUP_DRAWS
    spec = msgspec.structs.replace(scenario.dataset, num_prompts=n * draws)
    if spec.dataset_name == "jsonl":  # it has only the prompts of the measurement
        spec = msgspec.structs.replace(spec, dataset_name="random", random_input_len=64, random_output_len=16)
    sessions = make_dataset(spec, vocabulary, scenario.run.seed + _WARMUP_SEED).sessions
    before = accumulate((len(session.turns) for session in sessions), initial=0)
    return tuple(session for session, sent in zip(sessions, before, strict=False) if sent < n)


def _check_prompts(scenario: Scenario, dataset: Dataset) -> None:
    has_messages = any(isinstance(turn.prompt, ChatPrompt) for s in dataset.sessions for turn in s.turns)
    if has_messages and scenario.endpoint.backend != "openai-chat":
        raise SpecError(f"backend is {scenario.endpoint.backend!r}: requests with messages need 'openai-chat'")
