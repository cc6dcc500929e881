"""Recorder of an engine's steps, which writes them to a file. Observes the inbox, wraps runner and outbox of the loop.

While nothing is recorded it passes everything on; a server without a trace directory has no tracer. Recording keeps
numbers only; events are made when the file is written, which holds up the engine for that long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from ... import __version__
from ...clock import Clock
from ...cost.pricer import Pricer, StepCharge
from ...host.private_file import open_private
from ...kernels.program import Program
from ...link.messages import Tokens, TraceReply
from ...types import Request, StepPlan, StepResult, TokenEvent
from ..loop import Outbox, Pending, Runner
from .events import (
    REQUEST_EVENTS,
    STEP_EVENTS,
    Event,
    InstructionTimes,
    Lanes,
    RequestTrace,
    StepTrace,
    TraceEvents,
)
from .modelled import GRAPH_EVENTS


@runtime_checkable
class DeviceRunner(Protocol):
    """A runner whose instructions can be timed."""

    def time_instructions(self, is_on: bool) -> None:
        """Time every instruction from the next step on, or stop it."""
        ...

    @property
    def timed(self) -> tuple[Program, npt.NDArray[np.float64]] | None:
        """Program that ran last, and [len(program) + 1] seconds: its start and the end of each instruction."""
        ...


@dataclass(slots=True)
class _Open:
    """Times of a step that was computed and whose output is not sent yet."""

    plan: StepPlan
    execute_begin: float
    execute_end: float
    instructions: InstructionTimes | None
    charge: StepCharge | None


class Recording:
    """The records of one trace, up to `max_events` events; later ones are dropped."""

    def __init__(self, begin: float, num_cores: int, max_events: int) -> None:
        self.begin, self.is_truncated = begin, False
        self.steps: list[StepTrace] = []
        self.requests: dict[str, RequestTrace] = {}
        self._num_cores, self._room = num_cores, max_events

    def add_step(self, step: StepTrace) -> None:
        done = step.instructions
        device = 0 if done is None else self._num_cores * (len(done.labels) + 1)
        graphs = 0 if step.charge is None else len(step.charge.runs)
        if self._take(STEP_EVENTS + device + GRAPH_EVENTS * graphs):
            self.steps.append(step)

    def add_request(self, request_id: str, request: RequestTrace) -> None:
        if self._take(REQUEST_EVENTS):
            self.requests[request_id] = request

    def preempted(self, request_id: str, time: float) -> None:
        request = self.requests.get(request_id)
        if request is not None and self._take(1):
            request.preemptions.append(time)

    def event(self, event: TokenEvent) -> None:
        """Note a token, or the end of a sequence."""
        request = self.requests.get(event.request_id)
        if request is None:
            return
        if event.token_id is not None:
            request.num_tokens += 1
            if request.first_token is None:
                request.first_token = event.time
        if event.finish_reason is not None:
            request.end, request.finish_reason = event.time, event.finish_reason

    def _take(self, count: int) -> bool:
        """Take room for `count` events; return False when there is none, and from then on."""
        if self.is_truncated or count > self._room:
            self.is_truncated = True
            return False
        self._room -= count
        return True


class Tracer:
    """Tracer of one engine."""

    def __init__(
        self, lanes: Lanes, clock: Clock, max_events: int, device: DeviceRunner | None, pricer: Pricer | None = None
    ) -> None:
        self._lanes, self._clock, self._max_events, self._device = lanes, clock, max_events, device
        self._pricer = pricer
        self._recording: Recording | None = None
        self._step: _Open | None = None

    @property
    def is_recording(self) -> bool:
        return self._recording is not None

    def start(self) -> None:
        """Begin a new recording."""
        self._recording = Recording(self._clock.now(), len(self._lanes.cores), self._max_events)
        if self._device is not None:
            self._device.time_instructions(True)

    def stop(self, file: Path) -> TraceReply:
        """End the recording and write it to `file`, which appears when it is whole. Raises OSError."""
        recording, self._recording, self._step = self._recording, None, None
        if self._device is not None:
            self._device.time_instructions(False)
        assert recording is not None
        num_events = _write(file, self._events(recording), self._lanes)
        return TraceReply(str(file), len(recording.steps), num_events, recording.is_truncated)

    def runner(self, runner: Runner) -> Runner:
        return _TracedRunner(self, runner)

    def outbox(self, outbox: Outbox) -> Outbox:
        return _TracedOutbox(self, outbox)

    def observe(self, requests: Sequence[Request]) -> None:
        """Record the arrival of requests (an Observer of the inbox)."""
        if (recording := self._recording) is not None:
            for request in requests:
                track = RequestTrace(request.arrival_time, num_prompt_tokens=len(request.prompt_token_ids))
                recording.add_request(request.request_id, track)

    def submit(self, runner: Runner, plan: StepPlan) -> Pending:
        """Submit the plan and keep its times."""
        if self._recording is None:
            return runner.submit(plan)
        begin = self._clock.now()
        pending = runner.submit(plan)

        def collect() -> StepResult:
            result = pending()
            end = self._clock.now()
            charge = None if self._pricer is None else self._pricer.charge(plan)
            self._step = _Open(plan, begin, end, self._instructions(), charge)
            return result

        return collect

    def put(self, outbox: Outbox, tokens: Tokens) -> None:
        """Send the output of a turn, and record the turn."""
        begin = self._clock.now()
        outbox.put(tokens)
        recording, step, self._step = self._recording, self._step, None
        if recording is None:
            return
        if step is not None:
            self._note(recording, step.plan)
            recording.add_step(_step(step, begin, self._clock.now()))
        for event in tokens.events:
            recording.event(event)

    def _note(self, recording: Recording, plan: StepPlan) -> None:
        """Note the plan's admitted and preempted requests."""
        for seq in plan.seqs:
            if seq.request_id not in recording.requests:  # open since before the trace began
                recording.add_request(seq.request_id, RequestTrace(recording.begin, is_partial=True))
        for request_id in plan.admitted:
            if (request := recording.requests.get(request_id)) is not None:
                request.scheduled = plan.time
        for request_id in plan.preempted:
            recording.preempted(request_id, plan.time)

    def _instructions(self) -> InstructionTimes | None:
        timed = None if self._device is None else self._device.timed
        if timed is None:
            return None
        program, times = timed
        return InstructionTimes(program.name, program.labels, program.collectives, times)

    def _events(self, recording: Recording) -> Iterator[Event]:
        made = TraceEvents(recording.begin, self._lanes)
        yield from made.names()
        for step in recording.steps:
            yield from made.step(step)
        now = self._clock.now()
        for request_id, request in recording.requests.items():
            yield from made.request(request_id, request, now)


class _TracedRunner:
    def __init__(self, tracer: Tracer, runner: Runner) -> None:
        self._tracer, self._runner = tracer, runner

    def submit(self, plan: StepPlan) -> Pending:
        return self._tracer.submit(self._runner, plan)


class _TracedOutbox:
    def __init__(self, tracer: Tracer, outbox: Outbox) -> None:
        self._tracer, self._outbox = tracer, outbox

    def put(self, tokens: Tokens) -> None:
        self._tracer.put(self._outbox, tokens)


def _step(step: _Open, apply_end: float, send_end: float) -> StepTrace:
    plan = step.plan
    return StepTrace(
        step_id=plan.step_id,
        num_prefill_tokens=sum(len(seq.token_ids) for seq in plan.prefill),
        num_decode_tokens=len(plan.decode),
        num_seqs=len(plan.seqs),
        schedule_begin=plan.time,
        execute_begin=step.execute_begin,
        execute_end=step.execute_end,
        apply_end=apply_end,
        send_end=send_end,
        instructions=step.instructions,
        charge=step.charge,
    )


def _write(file: Path, events: Iterator[Event], lanes: Lanes) -> int:
    """Write the events and return their number. An existing file is replaced only by a complete one."""
    encode, count = msgspec.json.Encoder().encode, 0
    about = {"server": f"neuronserve {__version__}", "device": lanes.device}
    part = file.with_name(f".{file.name}.part")
    try:
        with open_private(part, "wb") as out:
            out.write(b'{"displayTimeUnit":"ms","otherData":' + encode(about) + b',"traceEvents":[')
            for event in events:
                out.write((b",\n" if count else b"\n") + encode(event))
                count += 1
            out.write(b"\n]}\n")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return count
