"""Events of a trace file, made from records, in Chrome's trace event format, which Perfetto opens.

A trace has four processes: the NeuronCores, a lane each with the instructions of every step as the host ran them; the
modelled accelerator with the cost model's times of the same steps (modelled.py); the host, with lanes for scheduler and
runner; and the requests as async spans that contain queue, prefill and decode.
Format: "Trace Event Format" of the Chromium project. Times are microseconds since the trace began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...clock import NS
from ...cost.pricer import StepCharge
from .modelled import LANES, ModelledTimeline

Event = dict[str, Any]

DEVICE, HOST, REQUESTS, MODELLED = 1, 2, 3, 4  # pids of the file, not of the host
SCHEDULER_LANE, RUNNER_LANE = 0, 1
REQUEST_EVENTS = 8  # begin and end of the request and of its three phases
STEP_EVENTS = 8  # of the host's lanes


@dataclass(frozen=True, slots=True)
class Lanes:
    """Names of the lanes."""

    device: str  # such as inf2.xlarge
    cores: tuple[str, ...]  # such as ND 0:NC 1, in the order of the group
    pid: int  # of the engine's process


@dataclass(frozen=True, slots=True)
class InstructionTimes:
    """Times of the instructions of one run of a program. Cores synchronize after each one, so all have equal times."""

    program: str
    labels: Sequence[str]
    collectives: Sequence[bool]  # True where the instruction adds up partial sums of all cores
    times: Iterable[float]  # the start, then the end of each; seconds of the monotonic clock


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One turn of the engine with tokens to compute; seconds of the monotonic clock."""

    step_id: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_seqs: int
    schedule_begin: float
    execute_begin: float
    execute_end: float
    apply_end: float  # when its tokens are ready to be sent
    send_end: float
    instructions: InstructionTimes | None  # None: the runner has no device
    charge: StepCharge | None = None  # of the modelled accelerator


@dataclass(slots=True)
class RequestTrace:
    """One sequence. Times are None until they are known; `is_partial` if it was open before the trace began."""

    arrival: float
    is_partial: bool = False
    scheduled: float | None = None
    first_token: float | None = None
    end: float | None = None
    finish_reason: str | None = None
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    preemptions: list[float] = field(default_factory=list)


class TraceEvents:
    """Makes the events of one file from records."""

    def __init__(self, begin: float, lanes: Lanes) -> None:
        self._begin, self._lanes, self._modelled = begin, lanes, ModelledTimeline()

    def names(self) -> Iterator[Event]:
        """Metadata events: names and order of processes and lanes."""
        lanes = self._lanes
        yield _name(DEVICE, None, f"NeuronCores of {lanes.device}")
        for lane, name in enumerate(lanes.cores):
            yield _name(DEVICE, lane, name)
        yield _name(MODELLED, None, f"modelled {lanes.device}, by the cost model")
        for lane, name in enumerate(LANES):
            yield _name(MODELLED, lane, name)
        yield _name(HOST, None, f"host, engine process {lanes.pid}")
        yield _name(HOST, SCHEDULER_LANE, "scheduler")
        yield _name(HOST, RUNNER_LANE, "runner")
        yield _name(REQUESTS, None, "requests")
        for index, pid in enumerate((DEVICE, MODELLED, HOST, REQUESTS)):
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": index}}

    def step(self, step: StepTrace) -> Iterator[Event]:
        """Spans of one step, on every lane that it used."""
        about = {
            "step": step.step_id,
            "prefill_tokens": step.num_prefill_tokens,
            "decode_tokens": step.num_decode_tokens,
            "sequences": step.num_seqs,
        }
        lane = (HOST, SCHEDULER_LANE, "scheduler")
        yield self._span(lane, f"step {step.step_id}", step.schedule_begin, step.send_end, about)
        yield self._span(lane, "schedule", step.schedule_begin, step.execute_begin)
        yield self._span(lane, "apply", step.execute_end, step.apply_end)
        yield self._span(lane, "send", step.apply_end, step.send_end)
        lane = (HOST, RUNNER_LANE, "runner")
        yield self._span(lane, "execute", step.execute_begin, step.execute_end, about)
        if (done := step.instructions) is not None:
            times = [float(time) for time in done.times]
            begin, end = times[0], times[-1]
            yield self._span(lane, "fill inputs", step.execute_begin, begin)
            yield self._span(lane, f"run {done.program}", begin, end)
            yield self._span(lane, "sample", end, step.execute_end)
            yield from self._instructions(step.step_id, done, times)
        if step.charge is not None:
            for span in self._modelled.spans(step.step_id, step.execute_begin, step.charge):
                lane = (MODELLED, span.lane, "modelled")
                yield self._span(lane, span.name, span.begin_ns / NS, span.end_ns / NS, span.about)

    def _instructions(self, step_id: int, done: InstructionTimes, times: list[float]) -> Iterator[Event]:
        for core in range(len(self._lanes.cores)):
            yield self._span((DEVICE, core, "step"), f"step {step_id}", times[0], times[-1])
            for i, (label, is_collective) in enumerate(zip(done.labels, done.collectives, strict=True)):
                kind = "collective" if is_collective else "instruction"
                name = f"all-reduce, {label}" if is_collective else label
                yield self._span((DEVICE, core, kind), name, times[i], times[i + 1])

    def request(self, request_id: str, request: RequestTrace, now: float) -> Iterator[Event]:
        """Async spans of one sequence; a span that has not ended by `now` ends there."""
        end = now if request.end is None else request.end
        about = {
            "prompt_tokens": request.num_prompt_tokens,
            "generated_tokens": request.num_tokens,
            "finish_reason": request.finish_reason,
            "is_partial": request.is_partial or request.end is None,
        }
        phases = self._phases(request, end)
        yield self._async("b", request_id, "request", request.arrival, about)
        for name, begin, until in phases:
            yield self._async("b", request_id, name, begin)
            yield self._async("e", request_id, name, until)
        for time in request.preemptions:
            yield self._async("n", request_id, "preempted", time)
        yield self._async("e", request_id, "request", end)

    def _phases(self, request: RequestTrace, end: float) -> list[tuple[str, float, float]]:
        """Return the phases (queue, prefill, decode), each of which lasts until the next begins."""
        if request.is_partial:
            return []
        starts = [("queue", request.arrival), ("prefill", request.scheduled), ("decode", request.first_token)]
        known = [(name, start) for name, start in starts if start is not None]
        ends = [start for _, start in known[1:]] + [end]
        return [(name, start, until) for (name, start), until in zip(known, ends, strict=True)]

    def _time(self, seconds: float) -> float:
        """Convert to microseconds since the trace began, rounded to nanoseconds; 0 for earlier times."""
        return round(max(0.0, seconds - self._begin) * 1e6, 3)

    def _span(
        self, lane: tuple[int, int, str], name: str, begin: float, end: float, args: Event | None = None
    ) -> Event:
        """Make a complete event on (process, lane) of a category."""
        pid, tid, category = lane
        start = self._time(begin)
        event = {"ph": "X", "pid": pid, "tid": tid, "cat": category, "name": name, "ts": start}
        event["dur"] = round(max(0.0, self._time(end) - start), 3)
        return event if args is None else event | {"args": args}

    def _async(self, phase: str, request_id: str, name: str, time: float, args: Event | None = None) -> Event:
        """Make a nestable async event; events of one request share an id."""
        event = {"ph": phase, "pid": REQUESTS, "tid": 0, "cat": "request", "id": request_id, "name": name}
        event["ts"] = self._time(time)
        return event if args is None else event | {"args": args}


def _name(pid: int, tid: int | None, name: str) -> Event:
    kind = "process_name" if tid is None else "thread_name"
    event: Event = {"ph": "M", "name": kind, "pid": pid, "args": {"name": name}}
    return event if tid is None else event | {"tid": tid}
