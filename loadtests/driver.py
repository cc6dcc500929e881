"""Sending of a workload: open loop at given times, or closed loop by a number of workers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .alarm import Alarm
from .client import Wire, send
from .dialogue import Dialogue
from .lag import LagMeter, LagReport
from .openai_api import Backend, BodyOptions
from .prompts import Session, Turn
from .records import Phase, RequestRecord
from .response import StreamedResponse
from .vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """Format of a run's requests, and names of their records."""

    backend: Backend
    vocabulary: Vocabulary
    options: BodyOptions
    request_id_prefix: str
    phase: Phase = "measured"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Start times of sessions: `offsets` (seconds, one a session); None = as soon as a worker is free.

    At most `max_concurrency` requests are open: the number of workers, or with offsets a limit that holds requests
    back. No session starts after `stop_after_s`.
    """

    offsets: Sequence[float] | None
    max_concurrency: int | None = None
    stop_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Records and duration of a run, and the lateness of the generator."""

    records: list[RequestRecord]
    duration_s: float  # from the start until the last request has ended
    lag: LagReport
    is_interrupted: bool


class LoadRun:
    """One run; call `run` once. `on_record` gets each record as its request ends."""

    def __init__(self, wire: Wire, request_format: RequestFormat, on_record: Callable[[RequestRecord], None]) -> None:
        self._wire, self._format, self._on_record = wire, request_format, on_record
        self._records: list[RequestRecord] = []
        self._lag = LagMeter()
        self._limit: asyncio.Semaphore | None = None
        self._num_requests = 0
        self._work: asyncio.Task[None] | None = None
        self._is_interrupted = False

    async def run(self, sessions: Sequence[Session], schedule: Schedule) -> RunOutcome:
        """Send all requests and wait for their end. An interrupted run returns the records so far."""
        gc.collect()
        gc.freeze()  # a collection that walks all prompts would stop the generator for milliseconds
        self._wire = replace(self._wire, origin=time.monotonic())
        self._lag.start()
        beat = asyncio.create_task(self._lag.beat())
        self._work = asyncio.create_task(
            self._open_loop(sessions, schedule)
            if schedule.offsets is not None
            else self._closed_loop(sessions, schedule)
        )
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._work
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
            gc.unfreeze()
        return RunOutcome(self._records, self._wire.now(), self._lag.report(), self._is_interrupted)

    def interrupt(self) -> None:
        """End the run now; open requests are recorded as cancelled."""
        self._is_interrupted = True
        if self._work is not None:
            self._work.cancel()

    async def _open_loop(self, sessions: Sequence[Session], schedule: Schedule) -> None:
        if schedule.max_concurrency is not None:
            self._limit = asyncio.Semaphore(schedule.max_concurrency)
        alarm = Alarm()
        try:
            async with asyncio.TaskGroup() as group:
                for number, (offset, session) in enumerate(zip(schedule.offsets or (), sessions, strict=True)):
                    if schedule.stop_after_s is not None and offset > schedule.stop_after_s:
                        break
                    await alarm.wait_until(self._wire.origin + offset)
                    group.create_task(self._session(number, session, offset))
        finally:
            alarm.close()

    async def _closed_loop(self, sessions: Sequence[Session], schedule: Schedule) -> None:
        todo = iter(enumerate(sessions))
        num_workers = min(schedule.max_concurrency or len(sessions), len(sessions))
        async with asyncio.TaskGroup() as group:
            for _ in range(num_workers):
                group.create_task(self._worker(todo, schedule.stop_after_s))

    async def _worker(self, todo: Iterator[tuple[int, Session]], stop_after_s: float | None) -> None:
        for number, session in todo:
            now = self._wire.now()
            if stop_after_s is not None and now > stop_after_s:
                return
            await self._session(number, session, now)

    async def _session(self, number: int, session: Session, intended_s: float) -> None:
        """Send all turns of a session. A failed turn ends it, because the next needs its response."""
        dialogue = Dialogue(self._format.backend, self._format.vocabulary)
        for index, turn in enumerate(session.turns):
            if index:
                intended_s = self._wire.now() + turn.think_s
                await asyncio.sleep(turn.think_s)
            record = RequestRecord(
                request_id=f"{self._format.request_id_prefix}{self._num_requests}",
                session=number,
                turn=index,
                intended_s=intended_s,
                sent_s=intended_s,
                phase=self._format.phase,
                requested_output_tokens=turn.output_len,
            )
            self._num_requests += 1
            response = await self._turn(dialogue, turn, record)
            if not record.is_ok:
                return
            if index + 1 < len(session.turns):
                dialogue.add_response(turn, response)

    async def _turn(self, dialogue: Dialogue, turn: Turn, record: RequestRecord) -> StreamedResponse:
        body = self._format.options.encode(dialogue.prompt(turn), turn.output_len)
        if not record.turn:
            self._lag.note_send(self._wire.now() - record.intended_s)
        try:
            if self._limit is None:
                response = await send(self._wire, record, body)
            else:
                async with self._limit:
                    response = await send(self._wire, record, body)
        except asyncio.CancelledError:
            if record.failure is None:  # the request was not sent yet
                record.sent_s = record.end_s = self._wire.now()
                record.failure, record.error = "cancelled", "the run was interrupted before it was sent"
            raise
        finally:
            self._records.append(record)
            self._on_record(record)
        return response
