"""The successor of an engine that has ended: a new engine, or a spare one that was loaded beforehand.

A spare engine holds the model a second time and computes nothing. It takes over within moments of a death, and the
next spare engine is loaded once streams continue. Where memory does not allow a spare engine, a death costs a start.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import msgspec

from .handle import EngineHandle
from .messages import EngineInfo, Failed, Output
from .watchdog import EngineState

PAUSE_S = 1.0  # after a death, before the next spare engine takes CPU time from the streams
POLL_S = 0.1
RETRY_S = 60.0  # after a spare engine that could not start
_DECODER = msgspec.msgpack.Decoder(Output)
log = logging.getLogger("neuronserve.engine")


class Served(Protocol):
    """An engine's client."""

    state: EngineState
    engine: EngineHandle  # current one
    info: EngineInfo | None


class Succession:
    """Successors of one client's first engine."""

    def __init__(self) -> None:
        self._spare: asyncio.Future[EngineHandle] | None = None  # done once its process has started

    @property
    def spare_pid(self) -> int | None:
        """Process id of the spare engine, if one has loaded."""
        spare = self._spare.result() if self._spare is not None and self._spare.done() else None
        return spare.pid if spare is not None and spare.is_alive and spare.heartbeat.expected else None

    async def after(self, dead: EngineHandle, info: EngineInfo, inherits: bool) -> EngineHandle:
        """Close an engine that has ended and return its successor: the spare engine if it lives.

        With `inherits` the successor takes over the kept cache.
        """
        await asyncio.to_thread(dead.close)
        if not inherits:
            dead.kept.clear()
        spare = await self._take()
        if spare is not None and spare.is_alive:
            log.info("the spare engine takes over from %s", dead.name)
            return spare
        if spare is not None:
            await asyncio.to_thread(spare.close)
        return await asyncio.to_thread(dead.successor, info)

    async def renew(self, engine: EngineHandle, info: EngineInfo) -> bool:
        """Load a spare engine from the model's current files; return False when it could not start."""
        while self._spare is not None:
            await self.close()
        starting = asyncio.ensure_future(asyncio.to_thread(engine.successor, info))
        self._spare = starting
        spare = await asyncio.shield(starting)
        while starting is self._spare and spare.is_alive and not spare.heartbeat.expected:
            await asyncio.sleep(POLL_S)
        if starting is not self._spare or spare.is_alive:  # an engine that died meanwhile may have taken it
            return True
        log.warning("%s has no spare engine beside it: %s", engine.name, _last_words(spare))
        await self.close()
        return False

    async def keep(self, client: Served) -> None:
        """Keep a spare engine while the client's engine serves; never return."""
        while True:
            await asyncio.sleep(PAUSE_S)
            if client.state != "serving" or client.info is None or self._is_kept:
                continue
            if not await self.renew(client.engine, client.info):
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """End the spare engine."""
        spare = await self._take()
        if spare is not None:
            await asyncio.to_thread(spare.close)

    @property
    def _is_kept(self) -> bool:
        return self._spare is not None and (not self._spare.done() or self._spare.result().is_alive)

    async def _take(self) -> EngineHandle | None:
        """Return the spare engine, which the caller owns from now on."""
        spare, self._spare = self._spare, None
        return None if spare is None else await asyncio.shield(spare)


def _last_words(engine: EngineHandle) -> str:
    """Return why an engine whose output is unread could not start."""
    engine.join(1.0)
    for output in map(_DECODER.decode, engine.frames.read()):
        if isinstance(output, Failed):
            return output.message
    return engine.death().message
