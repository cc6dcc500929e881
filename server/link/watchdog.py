"""Notices from its heartbeat that an engine stalls, and kills one that hangs."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal, Protocol

from server.link.handle import EngineHandle

EngineState = Literal["loading", "serving", "stalled", "recovering", "dead"]
log = logging.getLogger("neuronserve.engine")


class Watched(Protocol):
    """An engine's client."""

    state: EngineState
    engine: EngineHandle  # in its present life


class Watchdog:
    """Decides from a heartbeat whether an engine stalls, and since when. Pure: it is told the time.

    Time in which the watcher itself could not run counts as little: a host that stands still stalls everybody.
    """

    STALLED_S = 0.75  # late by this much is worth telling
    PERIOD_S = 0.2  # between two looks

    def __init__(self) -> None:
        self._looked: float | None = None
        self.late_s = 0.0

    @property
    def is_stalled(self) -> bool:
        """True when the engine should have been heard of for a while."""
        return self.late_s >= self.STALLED_S

    def look(self, now: float, expected: float) -> None:
        """Note at time `now` when the engine is expected."""
        since = now if self._looked is None else self._looked
        self._looked = now
        if not expected or now < expected:
            self.late_s = 0.0
        else:
            self.late_s += min(now - since, 2 * self.PERIOD_S, now - expected)


async def watch(client: Watched, hang_timeout_s: float) -> None:
    """Until the engine is dead: say when it stalls, and kill it when it is `hang_timeout_s` seconds late."""
    watchdog, loop = Watchdog(), asyncio.get_running_loop()
    while client.state != "dead":
        await asyncio.sleep(watchdog.PERIOD_S)
        if client.state not in {"serving", "stalled"}:
            watchdog = Watchdog()
            continue
        watchdog.look(loop.time(), client.engine.heartbeat.expected)
        if watchdog.is_stalled and client.state == "serving":
            log.warning("%s stalls: it should have been heard of", client.engine.name)
        client.state = "stalled" if watchdog.is_stalled else "serving"
        if watchdog.late_s >= hang_timeout_s:
            client.engine.kill()
