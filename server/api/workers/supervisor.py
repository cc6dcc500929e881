"""Supervisor of several API processes: it has the engines, and starts and restarts the workers.

It answers no HTTP. The workers accept on one listening socket that is never closed, so a connection waits for another
worker when one dies. For each worker the hub is the engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from ...clock import MonotonicClock
from ...errors import EngineDead, EngineLost, StartError, WorkerLost
from ...link.groups import EngineGroups
from ...link.handle import EngineHandle, signal_name
from ...link.hub.hub import Hub
from ...link.restarts import Healing, RestartBreaker
from .. import peers
from ..config import ApiConfig, WorkerRole
from ..event_loop import run
from ..host_memory import HostMemory
from ..http.http_server import FLUSH_TIMEOUT_S
from ..http.watched_files import WatchedFiles
from ..listener import address, health_process
from ..phase import phase_of
from ..ready_file import ReadyFile
from ..server import ENGINE_STOP_TIMEOUT_S, until_dead
from ..service import charge_rate
from ..shared import Desks, Shared
from ..start_screen import show_way_in, start_screen
from ..store.database import StoreLock
from ..store.store import Store
from ..telemetry.gathered import MetricSums
from ..telemetry.telemetry import Telemetry

log = logging.getLogger("neuronserve")
RESTARTS = Healing(max_restarts=5, window_s=60.0)  # of one worker
LAST_WORDS_S = 1.0  # for reading the last messages of a dead worker
EXIT_GRACE_S = 10.0  # for a worker to end its own processes, beyond the time for requests
StartWorker = Callable[[WorkerRole, socket.socket], SpawnProcess]


class _Place:
    """One numbered worker, through all its lives."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: SpawnProcess | None = None  # in its current life
        self.breaker = RestartBreaker(RESTARTS)
        self.has_served = asyncio.Event()  # in any life
        self.served_at_last = False  # in the last life

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_alive()


class Supervisor:
    """Runs a server of several API processes. `run` returns when the server has ended."""

    def __init__(
        self,
        config: ApiConfig,
        engines: Sequence[EngineHandle],
        listener: socket.socket,
        num_workers: int,
        start: StartWorker,
    ) -> None:
        """`start` starts a worker's process with its end of a socket pair. Raises SettingsError."""
        self._config, self._listener, self._start = config, listener, start
        self._ready_file = ReadyFile(config.ready_file)
        self._health, self._is_loaded = health_process(config), False
        clock = MonotonicClock()
        self._engines = EngineGroups(engines, config.healing)
        self._telemetry = Telemetry(config, clock)
        self._sums = MetricSums(self._telemetry.registry)
        self._memory = HostMemory(config.host_memory_bytes, self._release_memory)
        self._hub = Hub(self._engines, self._conclude)
        self._watched = [] if config.keys.file is None else [WatchedFiles([config.keys.file], self._reload_keys)]
        self._shared = Shared(config, self._engines, clock)
        self._desks = Desks(config, self._shared, self._hub)
        self._places = [_Place(number) for number in range(num_workers)]
        self._is_stopping = False
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._store = Store(config.store)

    async def run(self) -> None:
        """Start all processes, serve until `shutdown` is done, and end all.

        Raises StartError when loading fails, and EngineLost or WorkerLost when that ended the server.
        """
        await self._store.recover()
        work = [self._load(), self._hub.follow_states(), self._memory.watch(), self._log_stats(), self._end_when_dead()]
        if self._health is not None:
            work.append(self._health.follow(lambda: phase_of(self._engines, self._is_loaded, self._is_stopping)))
        for each in (
            *work,
            *(files.watch() for files in self._watched),
            *(self._keep(place) for place in self._places),
        ):
            self._spawn(each)
        try:
            await self._end
        finally:
            self._is_stopping = True
            self._ready_file.remove()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for place in self._places:
                if place.process is not None:
                    place.process.kill()
                    await asyncio.to_thread(place.process.join)
            self._hub.close()
            await self._engines.stop(ENGINE_STOP_TIMEOUT_S)
            await self._telemetry.close()
            await self._store.close()
            if self._health is not None:
                self._health.close()
        if (loss := self._engines.loss) is not None:
            raise EngineLost(f"an engine was lost while the server ran: {loss}")

    def shutdown(self) -> None:
        """Let the workers drain, and end after the last. A second call ends running requests at once."""
        for place in self._places:
            if place.process is not None and place.is_running:
                place.process.terminate()
        if not self._is_stopping:
            self._is_stopping = True
            log.info("draining: %d sequences open in %d API workers", self._engines.num_open, len(self._places))
            self._spawn(self._end_after_workers())

    def restart_engines(self) -> None:
        """Restart each engine, one after the other; do nothing while no engine serves."""
        if self._engines.infos and not self._is_stopping:
            self._hub.restart()

    async def _load(self) -> None:
        with start_screen() as report:
            info = await self._engines.start(report)
        gc.enable()
        rate = charge_rate(self._config, info, len(self._engines.infos))
        self._telemetry.attach_engines(self._engines, rate)
        self._desks.open(await self._shared.open(info, self._telemetry, self._memory))
        self._hub.open(info.max_num_queued_reqs)
        for place in self._places:
            await place.has_served.wait()
        url = address(self._listener, "http" if self._config.tls is None else "https")
        self._is_loaded = True
        self._ready_file.write(url, model=self._config.model_names[0], device=info.device)
        log.info("ready: %s", url)
        show_way_in(url)

    async def _keep(self, place: _Place) -> None:
        """Keep a worker in its place until the server ends."""
        for generation in itertools.count():
            if self._is_stopping:
                return
            life = uuid.uuid4().hex
            role = WorkerRole(place.number, life, os.getpid(), is_successor=generation > 0)
            what = await self._run_worker(place, role, number=generation * len(self._places) + place.number)
            if self._is_stopping:
                return
            await self._store.recover(life)
            now = asyncio.get_running_loop().time()
            delay_s = place.breaker.delay_s(now, is_fault=True, has_served=place.served_at_last)
            if delay_s is None:
                raise WorkerLost(f"{what}, {RESTARTS.max_restarts + 1} times within {RESTARTS.window_s:g} s")
            log.error("%s; restarting it", what)
            await asyncio.sleep(delay_s)

    async def _run_worker(self, place: _Place, role: WorkerRole, number: int) -> str:
        """Run one life of a worker, which the hub knows by `number`, and return how it ended.

        Raises StartError when no earlier life has served.
        """
        ours, theirs = socket.socketpair()
        process = place.process = self._start(role, theirs)  # set here, so that the end of this task can kill it
        theirs.close()
        session = await self._hub.connect(number, ours, process.kill)
        serving = asyncio.ensure_future(session.serving.wait())
        serving.add_done_callback(lambda done: None if done.cancelled() else place.has_served.set())
        await _exit_of(process)
        serving.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await session.ended.wait()
        self._sums.end(number)
        place.served_at_last = session.serving.is_set()
        what = f"API worker {place.number} (pid {process.pid}) {_ending(process.exitcode)}"
        if session.failure is not None:
            what += f": {session.failure.message}"
        if not (place.has_served.is_set() or self._is_stopping):
            error = StartError(what if session.failure is None else session.failure.message)
            error.exit_code = 1 if session.failure is None else session.failure.exit_code
            raise error
        return what

    async def _end_after_workers(self) -> None:
        deadline_s = self._config.shutdown_timeout_s + FLUSH_TIMEOUT_S + EXIT_GRACE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while any(place.is_running for place in self._places):
                    await asyncio.sleep(0.05)
        self._finish()

    async def _end_when_dead(self) -> None:
        await until_dead(self._engines)
        self._finish()

    async def _log_stats(self) -> None:
        if self._config.log_stats_interval_s is not None:
            await self._telemetry.throughput.run(self._config.log_stats_interval_s)

    def _reload_keys(self) -> None:
        self._desks.keys.reload()

    def _release_memory(self) -> None:
        with contextlib.suppress(EngineDead):
            self._engines.release_memory()

    def _conclude(self, name: str, bodies: Mapping[int, bytes], caller: int) -> list[bytes]:
        """Return the answer to a worker that asked the others."""
        if name == peers.METRICS:
            return [self._sums.gather(bodies)]
        return [body for number, body in bodies.items() if number != caller]

    def _finish(self, error: BaseException | None = None) -> None:
        if self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._look_at)
        self._tasks.append(task)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        """End the server when a task of the supervisor fails."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._finish(error)


async def _exit_of(process: SpawnProcess) -> None:
    """Wait until a process has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)
    await asyncio.to_thread(process.join)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal_name(-code)}"
    return f"has ended with exit code {code}"


def serve(
    config: ApiConfig, engines: Sequence[EngineHandle], listener: socket.socket, num_workers: int, start: StartWorker
) -> None:
    """Run a server until it has shut down after SIGTERM or SIGINT. Raises StartError, including EngineLost."""
    lock = StoreLock(config.store.data_dir or Path())
    try:
        run(_serve(config, engines, listener, num_workers, start))
    finally:
        lock.close()


async def _serve(
    config: ApiConfig, engines: Sequence[EngineHandle], listener: socket.socket, num_workers: int, start: StartWorker
) -> None:
    supervisor = Supervisor(config, engines, listener, num_workers, start)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.shutdown)
    loop.add_signal_handler(signal.SIGHUP, supervisor.restart_engines)
    await supervisor.run()
