"""Replicas on the router's own host: servers that it starts at loopback ports, and again when they end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from ..api.listener import bind
from ..errors import ReplicaEnded, StartError
from ..host.fork_server import start_process
from ..link.handle import signal_name
from ..link.restarts import Healing, RestartBreaker
from .address import Address
from .fleet import Fleet

log = logging.getLogger("neuronserve.route")
HOST = "127.0.0.1"
EXIT_GRACE_S = 10.0  # for a replica to end its engines
MakeReplica = Callable[[int, socket.socket], BaseProcess]  # by number, listening there


class Children:
    """Processes by number."""

    def __init__(self, count: int, make: MakeReplica, healing: Healing) -> None:
        self._make, self._healing = make, healing
        self._processes: list[BaseProcess | None] = [None] * count
        self._listeners: list[socket.socket | None] = [bind(HOST, 0) for _ in range(count)]
        ports = [each.getsockname()[1] for each in self._listeners if each is not None]
        self.addresses = tuple(Address(HOST, port) for port in ports)
        self.num_needed = count

    async def keep(self, fleet: Fleet) -> None:
        """Keep all replicas running, which `fleet` watches; never return. Raises StartError and ReplicaEnded."""
        await asyncio.gather(*(self._keep(number, fleet) for number in range(len(self._processes))))

    def signal(self, number: int) -> None:
        """Send a signal to each replica."""
        for process in self._processes:
            if process is not None and process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    async def close(self, grace_s: float = EXIT_GRACE_S) -> None:
        """End all replicas, which get `grace_s` for their requests and engines, and keep their ports."""
        self.signal(signal.SIGTERM)
        running = [process for process in self._processes if process is not None and process.pid is not None]
        await asyncio.gather(*(asyncio.to_thread(process.join, grace_s) for process in running))
        for process in running:
            process.kill()
            await asyncio.to_thread(process.join)
        self._listeners = [old or bind(HOST, at.port) for old, at in zip(self._listeners, self.addresses, strict=True)]

    async def _keep(self, number: int, fleet: Fleet) -> None:
        breaker, loop, address = RestartBreaker(self._healing), asyncio.get_running_loop(), self.addresses[number]
        while True:
            listener = self._listeners[number] or bind(HOST, address.port)
            process = self._processes[number] = self._make(number, listener)
            await asyncio.to_thread(start_process, process)
            listener.close()  # when the replica has ended, its port refuses connections
            self._listeners[number] = None
            await _exit_of(process)
            what = f"replica {number} (pid {process.pid}) {_ending(process.exitcode)}"
            has_served = fleet.has_served(address)
            if not has_served:
                error = StartError(what)
                error.exit_code = process.exitcode if process.exitcode in (1, 2) else 1
                raise error
            delay_s = breaker.delay_s(loop.time(), is_fault=True, has_served=has_served)
            if delay_s is None:
                most = self._healing.max_restarts + 1
                raise ReplicaEnded(f"{what}, {most} times within {self._healing.window_s:g} s")
            log.error("%s; restarting it", what)
            await asyncio.sleep(delay_s)


async def _exit_of(process: BaseProcess) -> None:
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
