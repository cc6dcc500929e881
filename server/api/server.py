"""The API server's process: listen, load, serve, drain on a signal, end. It handles signals; uvicorn does not.

The socket listens from the first moment, so that probes see "loading" rather than a refused connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import multiprocessing
import signal
import socket
from collections.abc import Iterator, Sequence

from ..errors import EngineLost, RequestError
from ..host.open_files import REFUSED_CONNECTIONS
from ..link.groups import EngineGroups
from ..link.handle import EngineHandle
from .app import build_app
from .batch.runner import BatchRunner
from .config import ApiConfig
from .dialects.responses.background import Background
from .endpoints.inventory import inventory
from .event_loop import run
from .http.connections import Connections
from .http.http_server import HttpServer
from .http.tls import Tls
from .http.watched_files import WatchedFiles
from .listener import address, health_process
from .ready_file import ReadyFile
from .service import Service
from .start_screen import show_way_in, start_screen
from .wire.model import build_models

log = logging.getLogger("neuronserve")
ENGINE_STOP_TIMEOUT_S = 5.0
POLL_S = 0.05
DEAD_S = 10.0  # for which a server without engines answers 503 with the reason, before it ends


class ApiServer:
    """One server on one socket. `run` returns when the server has ended."""

    def __init__(self, config: ApiConfig, engines: EngineGroups, listener: socket.socket) -> None:
        self._watched = list(self._files_of(config))  # before they are read
        self.service = Service(config, engines)
        app = build_app(self.service)
        self._listener = listener
        self._ready_file = ReadyFile(config.ready_file)
        self._health = health_process(config.host, config.health_port)
        count_refusal = self.service.telemetry.refused_connections.inc
        self._tls = None if config.tls is None else Tls(config.tls)
        connections = Connections(listener, config.max_connections, REFUSED_CONNECTIONS, count_refusal, self._tls)
        self._background: Background = app.state.background
        self._uvicorn = HttpServer(app, connections)
        self._log_interval_s = config.log_stats_interval_s
        self._timeout_s = config.shutdown_timeout_s
        self._abort_now = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._batches: asyncio.Task[None] | None = None  # the runner of batches

    async def run(self) -> None:
        """Listen and load, then serve until `shutdown` is done.

        Raises StartError when loading fails, and EngineLost at the end when an engine has died meanwhile.
        """
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listener]))
        loading = asyncio.create_task(self._load())
        watching = [self.service.memory.watch(), *(files.watch() for files in self._watched)]
        if self._health is not None:
            watching.append(self._health.follow(lambda: self.service.phase))
        others = [
            asyncio.create_task(work) for work in (self._log_stats(), self._end_when_dead(), build_models(), *watching)
        ]
        try:
            await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
            await serving
        finally:
            self._uvicorn.end()
            self._ready_file.remove()
            for task in (loading, *others):
                task.cancel()
            await asyncio.gather(loading, *others, serving, return_exceptions=True)
            await self._stop_batches()
            self.service.abort_all()
            await self._background.close()
            await self.service.close(ENGINE_STOP_TIMEOUT_S)
            if self._health is not None:
                self._health.close()
        if (loss := self.service.engine.loss) is not None:
            raise EngineLost(f"an engine was lost while the server ran: {loss}")

    def shutdown(self) -> None:
        """Drain, then end. A second call ends running requests at once."""
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        else:
            self._abort_now.set()

    def _files_of(self, config: ApiConfig) -> Iterator[WatchedFiles]:
        """Return the files that are read again when they change."""
        if config.keys.file is not None:
            yield WatchedFiles([config.keys.file], self._reload_keys)
        if config.tls is not None:
            yield WatchedFiles(config.tls.files, self._reload_certificate)

    def _reload_keys(self) -> None:
        self.service.keys.reload()

    def _reload_certificate(self) -> None:
        if self._tls is not None:
            self._tls.reload()

    def restart_engines(self) -> None:
        """Restart each engine, one after the other; do nothing while no engine serves."""
        with contextlib.suppress(RequestError):
            self.service.restart_engines()

    def abandon(self) -> None:
        """End at once: nobody is left to answer."""
        if (parent := multiprocessing.parent_process()) is not None:
            asyncio.get_running_loop().remove_reader(parent.sentinel)
        self.shutdown()
        self.shutdown()

    async def _load(self) -> None:
        with start_screen() as report:
            await self.service.load(report)
        gc.freeze()  # long-lived objects: no collection needs to walk them
        gc.enable()
        if self.service.is_draining:  # interrupted as the load ended
            return
        self._log_model()
        if self.service.store.is_durable:
            self._batches = asyncio.create_task(BatchRunner(self.service).run())
        url = address(self._listener, "http" if self._tls is None else "https")
        self._ready_file.write(url, model=self.service.config.model_names[0], device=self.service.model.info.device)
        if self.service.config.is_replica:
            log.info("replica at %s is ready", url)
        else:
            log.info("ready: %s", url)
            show_way_in(url)

    def _log_model(self) -> None:
        info = self.service.model.info
        for note in info.notes:
            log.info("%s", note)
        names = ", ".join(self.service.config.model_names)
        weights = info.facts.quantization or info.dtype
        log.info(
            *("serving %s on %s (%s, weights %s)", names, info.device, info.parallelism, weights),
            extra={"inventory": inventory(self.service)},
        )

    async def _log_stats(self) -> None:
        if self._log_interval_s is not None:
            await self.service.telemetry.throughput.run(self._log_interval_s)

    async def _end_when_dead(self) -> None:
        """Report the loss of all engines to clients for a while, and end, so that a supervisor restarts the server."""
        await until_dead(self.service.engine)
        self._uvicorn.end()

    async def _stop_batches(self) -> None:
        """Stop the runner of batches: the next server continues them."""
        if self._batches is not None:
            self._batches.cancel()
            await asyncio.gather(self._batches, return_exceptions=True)

    async def _drain(self) -> None:
        is_serving = self.service.phase not in {"loading", "dead"}
        self.service.drain()
        await self._stop_batches()
        if is_serving:
            log.info("draining: %d sequences open, at most %g s", self.service.engine.num_open, self._timeout_s)
            await self._wait_until_idle()
            if left := self.service.engine.num_open:
                why = "a second signal" if self._abort_now.is_set() else f"{self._timeout_s:g} s are over"
                log.warning("draining ends: %s; %d open sequences end with an error", why, left)
            self.service.abort_all()
        self._uvicorn.end()

    async def _wait_until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while self.service.engine.num_open and loop.time() < deadline and not self._abort_now.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._abort_now.wait()


async def until_dead(engines: EngineGroups) -> None:
    """Return some time after the last engine that served has ended."""
    while engines.loss is None or engines.is_alive:
        await asyncio.sleep(POLL_S * 10)
    await asyncio.sleep(DEAD_S)
    log.error("no engine is left; the server ends")


def serve(config: ApiConfig, engines: Sequence[EngineHandle], listener: socket.socket) -> None:
    """Run a server until it has shut down after SIGTERM or SIGINT. Raises StartError, including EngineLost."""
    run(_serve(config, engines, listener))


async def _serve(config: ApiConfig, engines: Sequence[EngineHandle], listener: socket.socket) -> None:
    server = ApiServer(config, EngineGroups(engines, config.healing), listener)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.shutdown)
    loop.add_signal_handler(signal.SIGHUP, server.restart_engines)
    if (parent := multiprocessing.parent_process()) is not None:  # a router, without which nobody reaches this replica
        loop.add_reader(parent.sentinel, server.abandon)
    await server.run()
