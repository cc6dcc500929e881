"""The parent's handle of an engine's process (or thread, for tests): its start, its sockets, its end.

Commands and outputs are msgpack over a socket pair (`frames.py`); nothing listens on a port. The function that the
process runs is an argument, so this file imports nothing of the engine. The engine ignores SIGINT, SIGTERM and SIGHUP,
because the parent decides when it ends; it also ends when its parent does.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Literal

from ..config import EngineConfig
from ..errors import StartError
from ..host.confinement import (
    end_with_parent,
    follow_parent,
    give_up_network,
    go_first_when_memory_runs_out,
)
from ..host.fork_server import engine_context, start_process
from ..host.memory import num_oom_kills
from ..host.open_files import raise_open_files
from ..host.shared_file import SharedFile
from .frames import Frames
from .heartbeat import NUM_BYTES, Heartbeat
from .messages import EngineInfo
from .stage_ends import StageEnd, local_ends

EngineMode = Literal["process", "thread"]
log = logging.getLogger("neuronserve.engine")
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})  # no fault raises these
EXIT_S = 1.0  # in which the exit code arrives after sockets and pipes have closed


# The function that an engine's process runs, importable there by name. Returns the exit code.
EngineMain = Callable[[EngineConfig, "EngineEnd | StageEnd"], int]


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """Objects that an engine's process gets from its parent: socket, heartbeat, and the caches that outlive engines."""

    socket: socket.socket
    heartbeat: SharedFile
    kept: SharedFile  # blocks kept by earlier engines, for later ones
    stages: tuple[Connection, ...] = ()  # to the stages behind the first, on this host
    peers: tuple[SharedFile, ...] = ()  # the same of other engines, whose blocks this one may copy

    def close(self) -> None:
        """Close this process's descriptors except caches, once the engine has its own. May be called twice."""
        self.socket.close()
        self.heartbeat.close()
        for each in self.stages:
            each.close()


@dataclass(frozen=True, slots=True)
class Death:
    """End of an engine."""

    message: str
    is_fault: bool  # its computation may have caused it; no signal from outside did
    exit_code: int = 1
    is_oom: bool = False  # memory ran out

    def as_start_error(self) -> StartError:
        """Return the error of a start that ended so."""
        error = StartError(self.message)
        error.exit_code = self.exit_code
        return error


class EngineHandle:
    """An engine's process, started at once so that the model loads while the parent imports the rest."""

    def __init__(
        self,
        config: EngineConfig,
        main: EngineMain,
        mode: EngineMode = "process",
        kept: SharedFile | None = None,
        peers: tuple[SharedFile, ...] = (),
    ) -> None:
        """`kept` is the file of the predecessor, which may still live; `peers` are those of engines beside it."""
        self._config, self._main, self._mode, self.kept = config, main, mode, kept or SharedFile("kept-blocks", 0)
        self._peers = peers
        self._killed: Death | None = None  # by `kill`
        own_end, engines_end = socket.socketpair()
        heartbeat = SharedFile("heartbeat", NUM_BYTES)
        pipeline = config.pipeline
        controls, stages = local_ends(1 if pipeline.addresses else pipeline.size)
        self._end, self.frames = EngineEnd(engines_end, heartbeat, self.kept, controls, peers), Frames(own_end)
        self.heartbeat = Heartbeat(self._end.heartbeat)
        rank, size = config.data_parallel.rank, config.data_parallel.size
        self.name = "the engine" if size == 1 else f"engine {rank}"
        self._oom_kills = num_oom_kills()
        self._thread: threading.Thread | None = None
        self._started: Future[BaseProcess] | None = None
        if mode == "thread":
            threads = [
                threading.Thread(target=main, args=(config, end), name="engine", daemon=True)
                for end in (*stages, self._end)
            ]
            for self._thread in threads:
                self._thread.start()
        else:
            # Started in a thread, because the fork server and the caller may still have imports to finish.
            starter = ThreadPoolExecutor(1, "engine-start")
            self._started = starter.submit(_started_process, config, main, stages, self._end)
            starter.shutdown(wait=False)

    @property
    def process(self) -> BaseProcess | None:
        """The engine's process, None in thread mode. Waits until it has started; raises the error of a failed start."""
        return None if self._started is None else self._started.result()

    @property
    def pid(self) -> int | None:
        """The engine's process id, None in thread mode."""
        return self.process.pid if self.process is not None else None

    @property
    def is_alive(self) -> bool:
        runner = self.process or self._thread
        return runner is not None and runner.is_alive()

    def join(self, timeout_s: float = EXIT_S) -> bool:
        """Wait for the engine's end, blocking. Return True when it has ended."""
        runner = self.process or self._thread
        if runner is not None:
            runner.join(timeout_s)
        return not self.is_alive

    def successor(self, info: EngineInfo) -> EngineHandle:
        """Start a new engine with the configuration and the cache size of one that was ready.

        Requests were admitted for that cache size, however much memory the host has now. The successor also takes over
        the number of threads for a step of one token; measuring it takes a quarter of the processor time of a start.
        """
        num_blocks = (
            info.cache.num_blocks + info.cache.num_source_blocks or self._config.num_blocks_override
        )  # 0 where the model only encodes
        config = replace(self._config, num_blocks_override=num_blocks, threads_alone=info.threads_alone)
        return EngineHandle(config, self._main, self._mode, self.kept, self._peers)

    def end(self) -> None:
        """Kill the process on request, which is not a fault."""
        if self.process is not None:
            self.process.kill()

    def kill(self, why: str, is_fault: bool) -> None:
        """Kill a process that serves nobody; `why` becomes the reason of its death."""
        if self.process is not None:
            self._killed = Death(f"{self.name} (pid {self.pid}) {why} and was killed", is_fault)
            self.process.kill()

    def death(self) -> Death:
        """Return how the process ended: its exit code or signal, and whether memory ran out."""
        if self._killed is not None:
            return self._killed
        code = self.process.exitcode if self.process is not None else None
        who = f"{self.name} (pid {self.pid})"
        if code is None or code >= 0:
            return Death(f"{who} has ended with exit code {code}", is_fault=True)
        is_oom = -code == signal.SIGKILL and num_oom_kills() > self._oom_kills
        why = ", because memory ran out: its control group counts an OOM kill since the start" if is_oom else ""
        is_fault = is_oom or -code not in FROM_OUTSIDE
        return Death(f"{who} was killed by {signal_name(-code)}{why}", is_fault, is_oom=is_oom)

    def close(self) -> None:
        """Kill the engine if it still runs, and close what is shared with it. May be called twice."""
        if self._started is not None:
            if self._started.exception() is None:
                self._started.result().kill()
                self._started.result().join()
            self._end.close()
        self.heartbeat.close()
        self.frames.close()


def start_engines(configs: Sequence[EngineConfig], main: EngineMain, mode: EngineMode) -> list[EngineHandle]:
    """Start the engines of a server. Where they hand requests over, each can read the blocks that the others keep."""
    files = [SharedFile("kept-blocks", 0) for _ in configs]
    read = files if configs[0].data_parallel.num_prefill else []
    return [
        EngineHandle(each, main, mode, own, tuple(file for file in read if file is not own))
        for each, own in zip(configs, files, strict=True)
    ]


def _started_process(config: EngineConfig, main: EngineMain, stages: Sequence[StageEnd], end: EngineEnd) -> BaseProcess:
    """Start the processes of the stages, which end when the engine does, and the engine's, which is returned."""
    try:
        for stage in stages:
            start_process(_process(config, main, stage, "stage"))
        process = _process(config, main, end, "engine")
        start_process(process)
        return process
    finally:
        end.close()  # the processes have their own
        for stage in stages:
            stage.close()


def _process(config: EngineConfig, main: EngineMain, end: EngineEnd | StageEnd, name: str) -> BaseProcess:
    return engine_context().Process(target=process_main, args=(config, main, end), name=name, daemon=True)


def process_main(config: EngineConfig, main: EngineMain, end: EngineEnd | StageEnd) -> None:
    """Run `main` as the whole of an engine's or a stage's process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise_open_files()  # as the API has done since the fork server started
    end_with_parent()  # otherwise the API would not learn of its children's ends
    go_first_when_memory_runs_out()
    if not config.pipeline.addresses and not give_up_network():
        log.info("the kernel has no filter to keep the engine from the network")
    follow_parent()
    raise SystemExit(main(config, end))


def signal_name(number: int) -> str:
    """Return the name that `kill -l` prints."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
