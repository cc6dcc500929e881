"""The life of a process in front of replicas: find them, serve, drain on a signal, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..api.event_loop import run
from ..api.http.connections import Connections
from ..api.http.http_server import HttpServer
from ..api.http.tls import Tls
from ..api.http.watched_files import WatchedFiles
from ..api.listener import address, health_process
from ..api.ready_file import ReadyFile
from ..host.open_files import REFUSED_CONNECTIONS
from .config import FrontConfig, RouteConfig
from .fleet import Fleet
from .proxy import Proxy, build_app

log = logging.getLogger("neuronserve.route")
POLL_S = 0.05
MakeFront = Callable[[RouteConfig, Fleet, socket.socket, Tls | None], "HttpFront"]


class Replicas(Protocol):
    """Replicas that live and end with their router."""

    num_needed: int  # that are up before the router is ready

    async def keep(self, fleet: Fleet) -> None: ...  # keeps `fleet` informed, never returns, raises StartError
    def signal(self, number: int) -> None: ...
    async def close(self) -> None: ...


class Front(Protocol):
    """Answering side of a process: a proxy, or the picker of a gateway."""

    url: str  # "" until it listens
    num_open: int

    async def serve(self) -> None: ...  # until `stop`; raises StartError
    def stop(self) -> None: ...


class HttpFront(Proxy):
    """A proxy that listens on one socket."""

    def __init__(self, config: RouteConfig, fleet: Fleet, listener: socket.socket, tls: Tls | None) -> None:
        super().__init__(config, fleet)
        self._listener, self.url = listener, address(listener, "http" if tls is None else "https")
        connections = Connections(listener, config.max_connections, REFUSED_CONNECTIONS, lambda: None, tls)
        self._http = HttpServer(build_app(config, self), connections)

    async def serve(self) -> None:
        await self._http.serve(sockets=[self._listener])

    def stop(self) -> None:
        self._http.end()


class RouteServer:
    """One process. `run` returns when it has ended."""

    def __init__(self, config: FrontConfig, fleet: Fleet, front: Front, children: Replicas | None = None) -> None:
        self._config, self._fleet, self._front, self._children = config, fleet, front, children
        self._ready_file = ReadyFile(config.ready_file)
        self._health = health_process(config.host, config.health_port)
        self._draining: asyncio.Task[None] | None = None
        self._end_now = asyncio.Event()

    async def run(self, tls: Tls | None = None) -> None:
        """Serve until `shutdown` is done. Raises StartError and ReplicaEnded of its own replicas."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.shutdown)
        serving = asyncio.create_task(self._front.serve())
        lasting = {serving, asyncio.create_task(self._fleet.run())}
        work = [self._announce()]
        if self._config.tls is not None and tls is not None:
            work.append(WatchedFiles(self._config.tls.files, tls.reload).watch())
        if self._health is not None:
            work.append(self._health.follow(lambda: self._fleet.phase))
        if self._children is not None:
            lasting.add(asyncio.create_task(self._children.keep(self._fleet)))
        others = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(lasting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._front.stop()
            self._ready_file.remove()
            await asyncio.gather(serving, return_exceptions=True)
            for task in (*others, *lasting):
                task.cancel()
            await asyncio.gather(*others, *lasting, return_exceptions=True)
            if self._children is not None:
                await self._children.close()
            await self._fleet.close()
            if self._health is not None:
                self._health.close()

    def shutdown(self) -> None:
        """Drain, then end. A second call ends open requests at once."""
        if self._draining is None:
            self._fleet.is_draining = True
            self._draining = asyncio.create_task(self._drain())
        else:
            self._end_now.set()

    async def _announce(self) -> None:
        """Write the ready file when the first replica is up, or all of its own are."""
        num_needed = 1 if self._children is None else self._children.num_needed
        while not self._front.url or len(self._fleet.up) < num_needed:
            await asyncio.sleep(POLL_S)
        self._ready_file.write(self._front.url, replicas=[replica.address.name for replica in self._fleet.replicas])
        log.info("ready: %s", self._front.url)

    async def _drain(self) -> None:
        log.info("draining: %d requests open, at most %g s", self._front.num_open, self._config.shutdown_timeout_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.shutdown_timeout_s):
                while self._front.num_open and not self._end_now.is_set():
                    await asyncio.sleep(POLL_S)
        self._front.stop()


def route(
    config: RouteConfig, listener: socket.socket, children: Replicas | None = None, front: MakeFront = HttpFront
) -> None:
    """Run a router until it has shut down after SIGTERM or SIGINT. Raises StartError."""
    run(_route(config, listener, children, front))


async def _route(config: RouteConfig, listener: socket.socket, children: Replicas | None, front: MakeFront) -> None:
    fleet, tls = Fleet(config), None if config.tls is None else Tls(config.tls)
    restart = (lambda: None) if children is None else partial(children.signal, signal.SIGHUP)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, restart)  # of the engines of its own replicas
    await RouteServer(config, fleet, front(config, fleet, listener, tls), children).run(tls)
