"""One replica: its connections, and whether it is up, by probes and by what requests to it meet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable

from .address import Address
from .rules import IDLE_PROBE_S, PROBE_S
from .upstream import Lost, Upstream

log = logging.getLogger("neuronserve.route")
MAX_BACKOFF_S = 3.0  # between probes of a replica that is down
MAX_IDLE, MAX_IDLE_S = 256, 4.0  # connections that are kept, for less time than servers keep theirs (uvicorn: 5 s)
NOT_NOW = 503  # a replica that loads, drains or has lost an engine


class Replica:
    """One replica by its number in the ledger. `is_up`: new requests may go there."""

    def __init__(self, number: int, address: Address, silence_s: float, tls: ssl.SSLContext) -> None:
        self.number, self.address, self.endpoint = number, address, address.host_header.decode()
        self.is_up = self.has_served = False
        self.is_leaving = False  # no longer listed: open requests end, and it gets no more
        self.open: set[Upstream] = set()
        self.changed: Callable[[Replica], None] = lambda _: None  # called when `is_up` has changed
        self._num_failures = 0  # probes since the last that was answered
        self._silence_s, self._tls = silence_s, tls if address.is_tls else None
        self._idle: list[tuple[float, Upstream]] = []
        self._heard_at = 0.0
        self._is_due = asyncio.Event()  # a probe

    @contextlib.asynccontextmanager
    async def connection(self, is_new: bool = False) -> AsyncIterator[Upstream]:
        """Lend a connection; one whose answer was not read to its end is closed. Raises Lost."""
        upstream = None if is_new else self._kept()
        upstream = upstream or await self._connect()
        self.open.add(upstream)
        try:
            yield upstream
        finally:
            self.open.discard(upstream)
            if upstream.is_reusable and len(self._idle) < MAX_IDLE:
                self._idle.append((asyncio.get_running_loop().time(), upstream))
            else:
                upstream.close()

    async def watch(self) -> None:
        """Probe the replica for as long as it is listed or has requests."""
        while not self.is_leaving or self.open:
            self._is_due.clear()
            try:
                self._set(await self._probe() and not self.is_leaving)
                self._num_failures = 0
            except Lost as error:
                self._num_failures += 1
                if self.is_up or self.open:
                    log.warning("replica %s is lost: %s", self.address.name, error)
                self.close(str(error))
                self._set(False)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._is_due.wait()
        self.close()

    @property
    def _pause_s(self) -> float:
        if self._num_failures:
            return min(MAX_BACKOFF_S, PROBE_S * 2.0 ** min(self._num_failures, 4))
        return PROBE_S if self.open or not self.is_up else IDLE_PROBE_S

    def suspect(self) -> None:
        """Send no requests until a probe is answered, which is sent at once."""
        self._set(False)
        self._is_due.set()

    def leave(self) -> None:
        """Send no more requests, and end with the last open one."""
        self.is_leaving = True
        self.suspect()

    def close(self, why: str = "the router has closed the connection") -> None:
        """Close all connections; requests that wait for this replica are lost."""
        idle, self._idle = self._idle, []
        for upstream in (*(each for _, each in idle), *self.open):
            upstream.close(why)

    def _set(self, is_up: bool) -> None:
        if is_up != self.is_up:
            self.is_up, self.has_served = is_up, self.has_served or is_up
            log.info("replica %s is %s", self.address.name, "up" if is_up else "not up")
            self.changed(self)

    async def _probe(self) -> bool:
        """Return whether the replica takes requests.

        A second probe goes over a new connection if the first fails or is slow. Raises Lost when none is answered, and
        nothing else has come from the replica since.
        """
        begin = asyncio.get_running_loop().time()
        tasks: set[asyncio.Task[int]] = set()
        try:
            for is_new in (False, True):
                tasks.add(asyncio.create_task(self._ask_health(is_new)))
                done, _ = await asyncio.wait(tasks, timeout=self._silence_s / 2, return_when=asyncio.FIRST_COMPLETED)
                errors = [task.exception() for task in done]
                for task, error in zip(done, errors, strict=True):
                    if error is None:
                        return task.result() != NOT_NOW
                tasks -= done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._heard_at > begin:
            return self.is_up
        raise Lost(str(errors[0]) if errors else f"no sign of life for {self._silence_s:g} s")

    async def _ask_health(self, is_new: bool) -> int:
        async with self.connection(is_new) as upstream:
            await upstream.ask(b"GET /health HTTP/1.1\r\nhost: %b\r\n\r\n" % self.address.host_header)
            while await upstream.read():
                pass
            return upstream.status

    def _kept(self) -> Upstream | None:
        """Return an idle connection that the replica still keeps."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, upstream = self._idle.pop()
            if upstream.is_reusable and now - since < MAX_IDLE_S:
                return upstream
            upstream.close()
        return None

    async def _connect(self) -> Upstream:
        loop, address = asyncio.get_running_loop(), self.address
        upstream = Upstream(self._hear)
        try:
            async with asyncio.timeout(self._silence_s):
                if address.path:
                    await loop.create_unix_connection(lambda: upstream, address.path)
                else:
                    await loop.create_connection(lambda: upstream, address.host, address.port, ssl=self._tls)
        except (OSError, TimeoutError) as error:
            raise Lost(f"cannot connect: {error or 'no answer'}") from error
        return upstream

    def _hear(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
