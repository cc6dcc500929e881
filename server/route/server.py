"""The router's process: listen, find replicas, serve, drain on a signal, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from typing import Protocol

from ..api.event_loop import run
from ..api.http.connections import Connections
from ..api.http.http_server import HttpServer
from ..api.http.tls import Tls
from ..api.http.watched_files import WatchedFiles
from ..api.listener import address, health_process
from ..api.ready_file import ReadyFile
from ..host.open_files import REFUSED_CONNECTIONS
from .config import RouteConfig
from .fleet import Fleet
from .proxy import Proxy, build_app

log = logging.getLogger("neuronserve.route")
POLL_S = 0.05


class Replicas(Protocol):
    """Replicas that live and end with their router."""

    num_needed: int  # that are up before the router is ready

    async def keep(self, fleet: Fleet) -> None: ...  # keeps `fleet` informed, never returns, raises StartError
    def signal(self, number: int) -> None: ...
    async def close(self) -> None: ...


class RouteServer:
    """One router on one socket. `run` returns when it has ended."""

    def __init__(self, config: RouteConfig, listener: socket.socket, children: Replicas | None = None) -> None:
        """Raises SettingsError for a wrong file of replicas or certificates."""
        self._config, self._listener, self._children = config, listener, children
        self._fleet = Fleet(config)
        self._proxy = Proxy(config, self._fleet)
        self._tls = None if config.tls is None else Tls(config.tls)
        most = config.max_connections, REFUSED_CONNECTIONS
        connections = Connections(listener, *most, lambda: None, self._tls)
        self._http = HttpServer(build_app(config, self._proxy), connections)
        self._ready_file = ReadyFile(config.ready_file)
        self._health = health_process(config.host, config.health_port)
        self._draining: asyncio.Task[None] | None = None
        self._end_now = asyncio.Event()

    async def run(self) -> None:
        """Serve until `shutdown` is done. Raises StartError and ReplicaEnded of its own replicas."""
        serving = asyncio.create_task(self._http.serve(sockets=[self._listener]))
        lasting = {serving, asyncio.create_task(self._fleet.run())}
        work = [self._announce()]
        if self._config.tls is not None and self._tls is not None:
            work.append(WatchedFiles(self._config.tls.files, self._tls.reload).watch())
        if self._health is not None:
            work.append(self._health.follow(lambda: self._proxy.phase))
        if self._children is not None:
            lasting.add(asyncio.create_task(self._children.keep(self._fleet)))
        others = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(lasting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._http.should_exit = True
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
            self._proxy.is_draining = True
            self._draining = asyncio.create_task(self._drain())
        else:
            self._end_now.set()

    def restart_engines(self) -> None:
        """Have its own replicas restart their engines."""
        if self._children is not None:
            self._children.signal(signal.SIGHUP)

    async def _announce(self) -> None:
        """Write the ready file when the first replica is up, or all of its own are."""
        num_needed = 1 if self._children is None else self._children.num_needed
        while len(self._fleet.up) < num_needed:
            await asyncio.sleep(POLL_S)
        url = address(self._listener, "http" if self._tls is None else "https")
        self._ready_file.write(url, replicas=[replica.address.name for replica in self._fleet.replicas])
        log.info("ready: %s", url)

    async def _drain(self) -> None:
        log.info("draining: %d requests open, at most %g s", self._proxy.num_open, self._config.shutdown_timeout_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.shutdown_timeout_s):
                while self._proxy.num_open and not self._end_now.is_set():
                    await asyncio.sleep(POLL_S)
        self._http.should_exit = True


def route(config: RouteConfig, listener: socket.socket, children: Replicas | None = None) -> None:
    """Run a router until it has shut down after SIGTERM or SIGINT. Raises StartError."""
    run(_route(config, listener, children))


async def _route(config: RouteConfig, listener: socket.socket, children: Replicas | None) -> None:
    server = RouteServer(config, listener, children)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.shutdown)
    loop.add_signal_handler(signal.SIGHUP, server.restart_engines)
    await server.run()
