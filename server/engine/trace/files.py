"""Trace files of an engine, started and stopped by commands of the API."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from neuronserve.server.clock import MonotonicClock
from neuronserve.server.config import TraceConfig
from neuronserve.server.cost.pricer import Pricer
from neuronserve.server.engine.loop import Inbox, Outbox, Runner
from neuronserve.server.engine.trace.events import Lanes
from neuronserve.server.engine.trace.tracer import DeviceRunner, Tracer
from neuronserve.server.errors import SettingsError
from neuronserve.server.host.private_file import make_private_directory
from neuronserve.server.link.messages import Command, EngineInfo, Instruction, StartTrace, TraceCommand, TraceReply


class Inputs(Protocol):
    """Where all that the API sends comes from."""

    def drain(self, timeout_s: float) -> list[Instruction]:
        """As neuronserve.server.engine.loop.Inbox, with commands about traces among the others."""
        ...


class Traceable(Protocol):
    """A loaded engine."""

    @property
    def runner(self) -> Runner: ...
    @property
    def info(self) -> EngineInfo: ...
    @property
    def pricer(self) -> Pricer: ...


@dataclass(frozen=True, slots=True)
class Seams:
    """Inbox, runner and outbox of an engine loop, where a tracer can be put between."""

    inbox: Inbox
    runner: Runner
    outbox: Outbox


class CommandInbox:
    """Commands for the loop (implements engine.loop.Inbox); a command about traces goes to `apply` in its turn."""

    def __init__(self, inputs: Inputs, apply: Callable[[TraceCommand], None]) -> None:
        self._inputs, self._apply = inputs, apply

    def drain(self, timeout_s: float) -> list[Command]:
        commands: list[Command] = []
        for command in self._inputs.drain(timeout_s):
            if isinstance(command, TraceCommand):
                self._apply(command)
            else:
                commands.append(command)
        return commands


class TraceFiles:
    """Handles trace commands, and names and places the files."""

    def __init__(self, tracer: Tracer, directory: Path, reply: Callable[[TraceReply], None]) -> None:
        self._tracer, self._directory, self._reply = tracer, directory, reply

    def apply(self, command: TraceCommand) -> None:
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
    config: TraceConfig,
    engine: Traceable,
    inputs: Inputs,
    outbox: Outbox,
    reply: Callable[[TraceReply], None],
) -> Iterator[Seams]:
    """What the loop works with: its part of `inputs`, the engine's runner, `outbox`, traced where a directory is."""
    runner = engine.runner
    if config.directory is None:
        refusal = TraceReply(error="this engine has no trace directory")
        yield Seams(CommandInbox(inputs, lambda _: reply(refusal)), runner, outbox)
        return
    device = runner if isinstance(runner, DeviceRunner) else None
    tracer = Tracer(lanes_of(engine.info), MonotonicClock(), config.max_events, device, engine.pricer)
    files = TraceFiles(tracer, Path(config.directory), reply)
    inbox = CommandInbox(inputs, files.apply)
    try:
        yield Seams(tracer.inbox(inbox), tracer.runner(runner), tracer.outbox(outbox))
    finally:
        files.close()
