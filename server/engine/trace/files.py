"""Trace files of an engine, started and stopped by commands of the API."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from server.clock import MonotonicClock
from server.config import TraceConfig
from server.engine.loop import Inbox, Outbox, Runner
from server.engine.trace.events import Lanes
from server.engine.trace.tracer import DeviceRunner, Tracer
from server.errors import SettingsError
from server.link.messages import EngineInfo, StartTrace, StopTrace, TraceReply


@dataclass(frozen=True, slots=True)
class Seams:
    """Inbox, runner and outbox of an engine loop, where a tracer can be put between."""

    inbox: Inbox
    runner: Runner
    outbox: Outbox


class TraceFiles:
    """Handles trace commands, and names and places the files."""

    def __init__(self, tracer: Tracer, directory: Path, reply: Callable[[TraceReply], None]) -> None:
        self._tracer, self._directory, self._reply = tracer, directory, reply

    def handle(self, command: StartTrace | StopTrace) -> None:
        """Start or stop recording, and reply with the result."""
        is_start = isinstance(command, StartTrace)
        if is_start == self._tracer.is_recording:
            state = "a trace is being recorded already" if is_start else "no trace is being recorded"
            self._reply(TraceReply(error=state))
        elif is_start:
            self._tracer.start()
            self._reply(TraceReply())
        else:
            self._reply(self._write())

    def close(self) -> None:
        """Write a trace that is still being recorded."""
        if self._tracer.is_recording:
            self._write()

    def _write(self) -> TraceReply:
        """End the recording and write it to a new file."""
        file = self._directory / f"trace-{os.getpid()}-{time.time_ns() // 10**6}.json"
        try:
            return self._tracer.stop(file)
        except OSError as error:
            return TraceReply(error=f"the trace cannot be written to {file}: {error.strerror}")


def require_directory(config: TraceConfig) -> None:
    """Make the directory of the traces, if one is configured. Raises SettingsError when it cannot be used."""
    if config.directory is None:
        return
    try:
        Path(config.directory).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--trace-dir: cannot make {config.directory}: {error.strerror}") from error
    if not os.access(config.directory, os.W_OK | os.X_OK):
        raise SettingsError(f"--trace-dir: cannot write to {config.directory}")


def lanes_of(info: EngineInfo) -> Lanes:
    """Lanes of an engine's trace."""
    return Lanes(info.device, info.core_names, os.getpid())


@contextmanager
def traced(
    config: TraceConfig, info: EngineInfo, device: object, seams: Seams, reply: Callable[[TraceReply], None]
) -> Iterator[Seams]:
    """Put a tracer into `seams` if there is a trace directory. `device` is the innermost runner."""
    if config.directory is None:
        yield seams
        return
    runner = device if isinstance(device, DeviceRunner) else None
    tracer = Tracer(lanes_of(info), MonotonicClock(), config.max_events, runner)
    files = TraceFiles(tracer, Path(config.directory), reply)
    try:
        yield Seams(tracer.inbox(seams.inbox, files.handle), tracer.runner(seams.runner), tracer.outbox(seams.outbox))
    finally:
        files.close()
