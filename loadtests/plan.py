"""From a scenario to what is sent when: the workload, its schedule and the warm-up. Reads trace files, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from loadtests import arrivals
from loadtests.datasets.workload import Workload, make_workload
from loadtests.driver import Schedule
from loadtests.errors import SpecError
from loadtests.prompts import ChatPrompt, Session, num_requests
from loadtests.specs import ArrivalProcess, ArrivalSpec, DatasetSpec, Scenario
from loadtests.vocabulary import TokenizerVocabulary, Vocabulary

WARMUP_CONCURRENCY = 4
_WARMUP_SEED = 1_000_003  # added to the seed, so that a warm-up leaves nothing of the run in a prefix cache


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a run needs but a server. The same seed gives the same prompts at the same times."""

    seed: int
    vocabulary: Vocabulary
    workload: Workload
    schedule: Schedule
    warmup: tuple[Session, ...]
    arrival: ArrivalProcess  # what `auto` became

    @property
    def num_requests(self) -> int:
        """Requests that are sent when nothing ends the run early."""
        return num_requests(self.workload.sessions)


def make_plan(scenario: Scenario, seed: int) -> Plan:
    """Raises SpecError or DatasetError."""
    spec, arrival = scenario.dataset, scenario.arrival
    path = scenario.endpoint.tokenizer
    vocabulary = Vocabulary() if path is None else TokenizerVocabulary(Path(path))
    if arrival.duration_s is not None and arrival.request_rate < math.inf and arrival.arrival in {"auto", *_RATED}:
        spec = _for_duration(spec, arrival)
    workload = make_workload(spec, vocabulary, seed)
    _check_prompts(scenario, workload)
    process = _resolve(arrival, workload)
    return Plan(
        seed, vocabulary, workload, _schedule(process, arrival, workload, seed), _warmup(scenario, vocabulary), process
    )


_RATED: dict[ArrivalProcess, Callable[[int, ArrivalSpec, int], list[float]]] = {
    "poisson": lambda n, spec, seed: arrivals.poisson(n, spec.request_rate, seed),
    "gamma": lambda n, spec, seed: arrivals.gamma(n, spec.request_rate, spec.burstiness, seed),
    "constant": lambda n, spec, _: arrivals.constant(n, spec.request_rate),
}


def _for_duration(spec: DatasetSpec, arrival: ArrivalSpec) -> DatasetSpec:
    """As many requests as the rate brings in the duration."""
    turns = spec.num_turns if spec.dataset_name == "multi-turn" else 1
    num_sessions = max(1, math.ceil(arrival.request_rate * (arrival.duration_s or 0)))
    return msgspec.structs.replace(spec, num_prompts=num_sessions * turns)


def _resolve(spec: ArrivalSpec, workload: Workload) -> ArrivalProcess:
    if spec.arrival != "auto":
        return spec.arrival
    if spec.request_rate < math.inf:
        return "poisson" if spec.burstiness == 1.0 else "gamma"
    if workload.has_timestamps:
        return "trace"
    return "closed" if spec.max_concurrency is not None else "burst"


def _schedule(process: ArrivalProcess, spec: ArrivalSpec, workload: Workload, seed: int) -> Schedule:
    n = len(workload.sessions)
    schedule = Schedule(None, spec.max_concurrency, spec.duration_s)
    if process == "closed":
        if spec.max_concurrency is None:
            raise SpecError("arrival is 'closed': max_concurrency must say how many requests are open at once")
        return schedule
    if process in _RATED:
        if spec.request_rate == math.inf:
            raise SpecError(f"arrival is {process!r}: request_rate must be finite")
        return Schedule(_RATED[process](n, spec, seed), spec.max_concurrency)
    if process == "ramp":
        if spec.ramp_up_start_rps is None or spec.ramp_up_end_rps is None:
            raise SpecError("arrival is 'ramp': ramp_up_start_rps and ramp_up_end_rps are needed")
        rates = (spec.ramp_up_start_rps, spec.ramp_up_end_rps)
        return replace(schedule, offsets=arrivals.ramp(n, rates, spec.ramp_up_strategy, seed))
    if process == "trace":
        if not workload.has_timestamps:
            raise SpecError("arrival is 'trace': the dataset has no timestamps")
        times = [session.arrival_s or 0.0 for session in workload.sessions]
        return replace(schedule, offsets=arrivals.trace(times, spec.trace_speed))
    return replace(schedule, offsets=arrivals.all_at_once(n))


def _warmup(scenario: Scenario, vocabulary: Vocabulary) -> tuple[Session, ...]:
    n = scenario.run.num_warmups
    if not n:
        return ()
    spec = msgspec.structs.replace(scenario.dataset, num_prompts=n)
    if spec.dataset_name == "jsonl":  # has no other prompts than those to be measured
        spec = msgspec.structs.replace(spec, dataset_name="random", random_input_len=64, random_output_len=16)
    return make_workload(spec, vocabulary, scenario.run.seed + _WARMUP_SEED).sessions


def _check_prompts(scenario: Scenario, workload: Workload) -> None:
    has_messages = any(isinstance(turn.prompt, ChatPrompt) for s in workload.sessions for turn in s.turns)
    if has_messages and scenario.endpoint.backend != "openai-chat":
        raise SpecError(f"backend is {scenario.endpoint.backend!r}: requests with messages need 'openai-chat'")
