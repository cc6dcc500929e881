"""All replicas of a router: found and watched, and the ledger of what is open at each."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection, Coroutine
from typing import Any

from ..api.http.watched_files import WatchedFiles
from ..api.phase import Phase
from ..errors import SettingsError, Unavailable
from ..scheduler.router import PENDING_WEIGHT
from .address import Address, read_file, resolved
from .asked import Asked
from .config import FrontConfig
from .prompt import new_ledger
from .replica import Replica

log = logging.getLogger("neuronserve.route")
RESOLVE_S = 5.0  # between two look-ups of DNS names


class Fleet:
    """Replicas by number. A number is one address for ever, so that the ledger's counts hold while replicas change."""

    def __init__(self, config: FrontConfig) -> None:
        """Raises SettingsError when the file of replicas is wrong."""
        self.replicas: list[Replica] = []
        self.ledger = new_ledger()
        self.is_draining = False  # the process ends with its open requests
        self.is_on_demand = False  # replicas start when they are needed
        self._config = config
        self.max_wait_s = config.max_wait
        self._file = config.replicas_file
        self._listed = self._read()
        self._tls = ssl.create_default_context(cafile=config.ca_file)
        self._is_any_up = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> list[Replica]:
        """Replicas that take requests, by name: the same order in every router."""
        return sorted((each for each in self.replicas if each.is_up), key=lambda each: each.address.name)

    @property
    def phase(self) -> Phase:
        """Phase of the process in front of the replicas: loading while none is up, unless they start on demand."""
        return "draining" if self.is_draining else "ready" if self.up or self.is_on_demand else "loading"

    def has_served(self, address: Address) -> bool:
        """Return whether a replica has been up."""
        return any(each.has_served for each in self.replicas if each.address == address)

    async def run(self) -> None:
        """Find and watch the replicas; never return."""
        if self._file is not None:
            self._spawn(WatchedFiles([self._file], self._reload).watch())
        while True:
            await self._find()
            await asyncio.sleep(RESOLVE_S)

    def follow(self, listed: list[Address]) -> None:
        """Have these replicas, beside those of the configuration, from now on."""
        self._listed = listed
        self._spawn(self._find())

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for replica in self.replicas:
            replica.close()

    def at(self, only: str) -> list[Replica]:
        """Return the replicas that take requests; with an address that one alone."""
        return [each for each in self.up if only in ("", each.address.name)]

    async def place(self, name: str, asked: Asked, tried: Collection[Replica] = ()) -> Replica:
        """Choose a replica for a request, and count it there until `ledger.end(name)`.

        Replicas of `tried` are the last choice. Waits while none is up. Raises Unavailable.
        """
        await self.until_up(asked.only)
        some = [each.number for each in self.at(asked.only) if asked.only or each not in tried]
        prompt = asked.prompt.digests, asked.prompt.num_tokens, asked.session
        return self.replicas[self.ledger.place_prompt(name, *prompt, among=some if tried or asked.only else ())]

    async def first(self, tried: Collection[Replica] = (), only: str = "") -> Replica:
        """Return the first replica that is up and not among `tried`. Waits and raises as `place`."""
        await self.until_up(only)
        return next((each for each in self.at(only) if each not in tried), self.at(only)[0])

    async def until_up(self, only: str = "") -> None:
        """Wait for a replica, or for the one at an address. Raises Unavailable when it does not come in time."""
        try:
            async with asyncio.timeout(self.max_wait_s):
                while not self.at(only):
                    self._is_any_up.clear()
                    await self._is_any_up.wait()
        except TimeoutError as error:
            raise Unavailable(
                f"No replica is up, and none came within {self.max_wait_s:g} s.", code="no_replica"
            ) from error

    async def _find(self) -> None:
        """Look the listed addresses up, and follow the changes."""
        found: dict[str, Address] = {}
        for address in (*self._config.replicas, *self._listed):
            try:
                found |= {each.name: each for each in await resolved(address, self._config.is_by_ip)}
            except OSError as error:
                log.warning("%s cannot be looked up: %s", address.name, error)
                at_port = (each for each in self.replicas if not each.is_leaving and address.port == each.address.port)
                found |= {each.address.name: each.address for each in at_port}
        known = {replica.address.name: replica for replica in self.replicas}
        for name, address in found.items():
            if name not in known or (known[name].is_leaving and not known[name].open):
                self._add(address, known.get(name))
        for name, replica in known.items():
            if name not in found and not replica.is_leaving:
                log.info("replica %s is no longer listed; %d requests are open", name, len(replica.open))
                replica.leave()

    def _add(self, address: Address, former: Replica | None) -> None:
        number = len(self.replicas) if former is None else former.number
        replica = Replica(number, address, self._config.silence_timeout, self._tls)
        replica.changed = self._follow
        self.replicas[number : number + 1] = [replica]
        if former is None:
            is_far = bool(self._config.zone) and address.zone != self._config.zone
            self.ledger.join(number, PENDING_WEIGHT * self._config.zone_spill_tokens * is_far)
            self.ledger.pause(number)
        self._spawn(replica.watch())

    def _follow(self, replica: Replica) -> None:
        if replica.is_up:
            self.ledger.go_on(replica.number)
            self._is_any_up.set()
        else:
            self.ledger.pause(replica.number)

    def _read(self) -> list[Address]:
        listed = [] if self._file is None else read_file(self._file)
        paths = (each.name for each in (*self._config.replicas, *listed) if each.path)
        if self._config.is_by_ip and (name := next(paths, "")):
            raise SettingsError(f"{name}: a replica of a gateway needs an IP address and a port")
        return listed

    def _reload(self) -> None:
        try:
            self.follow(self._read())
        except SettingsError as error:
            log.error("%s; the replicas stay as they are", error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
