"""Trace files of an engine, started and stopped by commands of the API."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...clock import MonotonicClock
from ...config import TraceConfig
from ...cost.pricer import Pricer
from ...errors import SettingsError
from ...host.private_file import make_private_directory
from ...link.messages import EngineInfo, StartTrace, StopTrace, TraceReply
from ..inbox import Handlers, Observer
from ..loop import Outbox, Runner
from .events import Lanes
from .tracer import DeviceRunner, Tracer


class Traceable(Protocol):
    """A loaded engine."""

    @property
    def runner(self) -> Runner: ...
    @property
    def info(self) -> EngineInfo: ...
    @property
    def pricer(self) -> Pricer: ...


@dataclass(frozen=True, slots=True)
class Traced:
    """Runner and outbox of an engine loop, and what traces register with its inbox."""

    runner: Runner
    outbox: Outbox
    handlers: Handlers
    observers: tuple[Observer, ...] = ()


class TraceFiles:
    """Handler of trace commands, which names and writes the files."""

    def __init__(self, tracer: Tracer, directory: Path, reply: Callable[[TraceReply], None]) -> None:
        self._tracer, self._directory, self._reply = tracer, directory, reply

    def start(self, _: StartTrace) -> None:
        """Start recording, and reply."""
        if self._tracer.is_recording:
            self._reply(TraceReply(error="a trace is being recorded already"))
            return
        self._tracer.start()
        self._reply(TraceReply())

    def stop(self, _: StopTrace) -> None:
        """Stop recording, write the file, and reply."""
        self._reply(self._write() if self._tracer.is_recording else TraceReply(error="no trace is being recorded"))

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
        make_private_directory(Path(config.directory))
    except OSError as error:
        raise SettingsError(f"--trace-dir: cannot make {config.directory}: {error.strerror}") from error
    if not os.access(config.directory, os.W_OK | os.X_OK):
        raise SettingsError(f"--trace-dir: cannot write to {config.directory}")


def lanes_of(info: EngineInfo) -> Lanes:
    """Lanes of an engine's trace."""
    return Lanes(info.device, info.core_names, os.getpid())


@contextmanager
def traced(
    config: TraceConfig, engine: Traceable, outbox: Outbox, reply: Callable[[TraceReply], None]
) -> Iterator[Traced]:
    """Yield the engine's runner and `outbox`, traced when a directory is configured and untouched otherwise."""
    if config.directory is None:
        refusal = TraceReply(error="this engine has no trace directory")
        yield Traced(engine.runner, outbox, dict.fromkeys((StartTrace, StopTrace), lambda _: reply(refusal)))
        return
    device = engine.runner if isinstance(engine.runner, DeviceRunner) else None
    tracer = Tracer(lanes_of(engine.info), MonotonicClock(), config.max_events, device, engine.pricer)
    files = TraceFiles(tracer, Path(config.directory), reply)
    handlers: Handlers = {StartTrace: files.start, StopTrace: files.stop}
    try:
        yield Traced(tracer.runner(engine.runner), tracer.outbox(outbox), handlers, (tracer.observe,))
    finally:
        files.close()
