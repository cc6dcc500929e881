"""`neuronserve stage`: a pipeline stage on a host of its own, for one server after the other."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Listener
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from ...host.confinement import end_with_parent, go_first_when_memory_runs_out
from ...host.fork_server import engine_context, start_process
from ...link.stage_ends import StageEnd, accepted
from .stage import run_stage
from .wire import Following, Setup

log = logging.getLogger("neuronserve.stage")
_FIRST = msgspec.msgpack.Decoder(Setup | Following)


@dataclass(frozen=True, slots=True)
class StageHost:
    """A host that computes one stage: its copy of the checkpoint, where compiled kernels are kept, and the key."""

    model: Path
    kernel_cache: str
    key: bytes

    def serve(self, listener: Listener) -> None:
        """Compute for the server that connected last, forever. A new server ends what the one before had."""
        running: BaseProcess | None = None
        waiting: tuple[Connection, Setup] | None = None  # a server whose stage before has not yet connected
        while True:
            connection = accepted(listener)
            try:
                first = _FIRST.decode(connection.recv_bytes())
            except (EOFError, OSError, msgspec.MsgspecError):
                connection.close()
                continue
            before: Connection | None = None
            if isinstance(first, Setup):
                log.info("a server asks for stage %d of %d", first.number + 1, first.config.pipeline.size)
                waiting = connection, first
            elif waiting is not None:
                before = connection
            if waiting is None or (before is None and waiting[1].number > 1):
                continue
            if running is not None:
                running.kill()
                running.join()
            running = self._start(StageEnd(waiting[0], before, key=self.key), waiting[1])
            waiting = None

    def _start(self, end: StageEnd, setup: Setup) -> BaseProcess:
        config = replace(
            setup.config, model_path=str(self.model), tokenizer_path=None, kernel_cache_dir=self.kernel_cache
        )
        told = msgspec.structs.replace(setup, config=config)
        process = engine_context().Process(target=_stage_process, args=(end, told), name="stage", daemon=True)
        try:
            start_process(process)
        finally:
            end.close()
        return process


def _stage_process(end: StageEnd, setup: Setup) -> None:
    end_with_parent()
    go_first_when_memory_runs_out()
    raise SystemExit(run_stage(end, setup))
