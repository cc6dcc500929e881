"""A bounded probe of an endpoint: a few small load tests, each for the time of one kind of step.

Single requests of several prompt lengths show prefill and a single stream; several at once show the cost of busy slots.
The reports have the form of any load test.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from ..server.device.buckets import powers_of_two
from ..server.errors import SettingsError
from .bench import measure
from .errors import EndpointError, LoadTestError, SpecError
from .plan import make_plan
from .result import make_result
from .session import run_loop
from .specs import ArrivalSpec, DatasetSpec, EndpointSpec, RunSpec, Scenario

SINGLE_OUTPUT = 16  # tokens of a request that is alone
OUTPUTS_A_SLOT = 4  # output tokens for each slot, so that most tokens are made while all slots are busy
LONGEST_OUTPUT = 512
MANY_SEEDS = 1 << 30  # random seeds: no earlier probe has left the prompts in a prefix cache


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """Requests of equal lengths, `concurrency` at a time."""

    name: str
    input_len: int
    output_len: int
    num_requests: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class ProbeShape:
    """Limits of the endpoint, and the size of the probe."""

    max_model_len: int
    max_num_seqs: int  # of one engine
    data_parallel_size: int = 1
    repeats: int = 5
    input_lens: tuple[int, ...] = ()  # () = about the smallest bucket, a quarter and all of the model's length
    max_seconds: float = 600.0


class Probe:
    """Steps of a probe, and their bound."""

    def __init__(self, shape: ProbeShape, now: Callable[[], float] = time.monotonic) -> None:
        """Raise SpecError when a length does not fit. `now` is the clock, in seconds."""
        self._shape, self._now = shape, now
        self.steps = (*self._singles(), *self._several())

    @property
    def bound(self) -> str:
        """Largest number of requests, tokens and seconds of the probe."""
        requests = 1 + sum(step.num_requests for step in self.steps)
        read = self.steps[0].input_len + sum(step.num_requests * step.input_len for step in self.steps)
        written = self.steps[0].output_len + sum(step.num_requests * step.output_len for step in self.steps)
        most = max(step.concurrency for step in self.steps)
        return (
            f"at most {requests} requests ({most} at once), {read:,} prompt and {written:,} output tokens, "
            f"{self._shape.max_seconds:g} s"
        )

    async def run(
        self, endpoint: EndpointSpec, api_key: str | None, on_step: Callable[[ProbeStep], None]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Run the steps. Returns the report of each step that ended in time, by name.

        Raises LoadTestError if a request fails, or if no step ended in time.
        """
        reports: list[tuple[str, dict[str, Any]]] = []
        end = self._now() + self._shape.max_seconds
        for step in self.steps:
            on_step(step)
            report = await self._step(endpoint, step, api_key, end, is_first=not reports)
            if report is None:
                break
            reports.append((step.name, report))
        if not reports:
            raise EndpointError(f"the {self._shape.max_seconds:g} s of the probe ended before its first step")
        return reports

    async def _step(
        self, endpoint: EndpointSpec, step: ProbeStep, api_key: str | None, end: float, is_first: bool
    ) -> dict[str, Any] | None:
        """Run one step. Returns None if the time is over."""
        left_s = end - self._now()
        if left_s <= 0:
            return None
        scenario = Scenario(
            name="probe",
            endpoint=msgspec.structs.replace(endpoint, request_timeout_s=left_s),
            dataset=DatasetSpec(
                num_prompts=step.num_requests, random_input_len=step.input_len, random_output_len=step.output_len
            ),
            arrival=ArrivalSpec(max_concurrency=step.concurrency),
            run=RunSpec(
                num_warmups=1 if is_first else 0,
                label=step.name,
                request_id_prefix="probe-",
                return_token_ids=True,  # one chunk for each token, even if its text waits for the next
            ),
        )
        plan = make_plan(scenario, secrets.randbelow(MANY_SEEDS))
        try:
            async with asyncio.timeout(left_s):
                measurement = await measure(scenario, plan, api_key, lambda _: None)
        except TimeoutError:
            return None
        except EndpointError:
            if self._now() >= end:
                return None
            raise
        if self._now() >= end:
            return None
        report: dict[str, Any] = json.loads(json.dumps(make_result(measurement)))
        if report["is_interrupted"]:
            raise EndpointError(f"interrupted at {step.name}: there is nothing to report")
        if report["failed"]:
            kinds = ", ".join(f"{count} {kind}" for kind, count in report["errors_by_kind"].items())
            example = next(iter(report["error_examples"].values()))
            raise EndpointError(f"{step.name}: of {step.num_requests} requests failed {kinds}: {example}")
        return report

    def _singles(self) -> list[ProbeStep]:
        shape = self._shape
        longest = shape.max_model_len - SINGLE_OUTPUT
        if longest < 1:
            raise SpecError(f"max_model_len is {shape.max_model_len}: a probe needs more than {SINGLE_OUTPUT}")
        for length in shape.input_lens:
            if length > longest:
                raise SpecError(f"input_lens has {length}: {longest} tokens and {SINGLE_OUTPUT} more fit")
        lengths = shape.input_lens or _automatic_lengths(shape.max_model_len)
        return [
            ProbeStep(f"{length} tokens, alone", length, SINGLE_OUTPUT, shape.repeats, 1)
            for length in sorted(set(lengths))
        ]

    def _several(self) -> list[ProbeStep]:
        """Return steps with one, half and all of the slots, at one length, in one bucket of contexts."""
        shape = self._shape
        most = min(LONGEST_OUTPUT, max(SINGLE_OUTPUT, OUTPUTS_A_SLOT * shape.max_num_seqs))
        rooms = _rooms(shape.max_model_len)
        bucket = next((end for end, room in rooms.items() if room >= most), max(rooms, key=lambda end: rooms[end]))
        output = min(most, rooms[bucket])
        busy = sorted({1, max(1, shape.max_num_seqs // 2), shape.max_num_seqs})
        return [
            ProbeStep(f"{number} at once", bucket - output, output, number, number)
            for number in (each * shape.data_parallel_size for each in busy)
            if number > 1 or len(busy) > 1
        ]


def _rooms(max_model_len: int) -> dict[int, int]:
    """Return the tokens of an answer that stays in its bucket of contexts, by the bucket's length."""
    ends = powers_of_two(max_model_len)
    return {end: end - begin for begin, end in pairwise((1, *ends))}


def _automatic_lengths(max_model_len: int) -> set[int]:
    """Return lengths that fill a bucket with their answer: the smallest, a quarter of the longest, the longest."""
    ends = [end for end, room in _rooms(max_model_len).items() if room >= SINGLE_OUTPUT]
    return {end - SINGLE_OUTPUT for end in (ends[0], ends[max(0, len(ends) - 3)], ends[-1])}


def probe(base_url: str, model: str | None, api_key: str | None, shape: ProbeShape) -> list[tuple[str, dict[str, Any]]]:
    """Print the bound of the probe, then probe the server. `model` None: the first that it serves.

    Raises SettingsError for any failure, as `neuronserve observe` calls it.
    """
    try:
        plan = Probe(shape)
        _say(f"probe of {base_url}: {plan.bound}")
        endpoint = EndpointSpec(base_url=base_url, model=model)
        return run_loop(plan.run(endpoint, api_key, lambda step: _say(f"probe: {step.name}")))
    except LoadTestError as error:
        raise SettingsError(str(error)) from error


def _say(line: str) -> None:
    print(line, file=sys.stderr)
