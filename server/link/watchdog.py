"""Notices from its heartbeat that an engine stalls, and kills one that hangs or is stopped."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal, Protocol

from neuronserve.server.host.stopped import cpu_when_stopped
from neuronserve.server.link.handle import EngineHandle

EngineState = Literal["loading", "serving", "stalled", "recovering", "dead"]
log = logging.getLogger("neuronserve.engine")


class Watched(Protocol):
    """An engine's client."""

    state: EngineState
    engine: EngineHandle  # in its present life


class Watchdog:
    """Decides whether an engine stalls, and since when, from its heartbeat and from whether its process is stopped.

    Pure: it is told the time. Time in which the watcher itself could not run counts as little: a host that stands still
    stalls everybody. A stopped process cannot be in the midst of a long step, so nobody waits for the end of one; but
    it must be stopped for some looks and have used no CPU meanwhile, because some tools stop and continue a process in
    turns.
    """

    STALLED_S = 0.75  # late by this much is worth telling
    PERIOD_S = 0.1  # between two looks
    STOPPED_LOOKS = 4  # in a row, after which it is stopped for good

    def __init__(self) -> None:
        self._looked: float | None = None
        self._stopped_at: float | None = None  # CPU seconds that it had used, where it was stopped at the last look
        self._num_stopped = 0  # looks in a row at which it was, without having run between them
        self.late_s = 0.0

    @property
    def is_stalled(self) -> bool:
        """True when the engine should have been heard of for a while, or does not run."""
        return self.late_s >= self.STALLED_S or self._num_stopped > 1

    @property
    def is_stopped(self) -> bool:
        """True when its process has been stopped, and is not continued."""
        return self._num_stopped >= self.STOPPED_LOOKS

    def look(self, now: float, expected: float, stopped_at: float | None = None) -> None:
        """Note at time `now` when the engine is expected, and its CPU seconds if its process is stopped."""
        since = now if self._looked is None else self._looked
        self._looked = now
        if not expected or now < expected:
            self.late_s = 0.0
        else:
            self.late_s += min(now - since, 2 * self.PERIOD_S, now - expected)
        goes_on = stopped_at is not None and stopped_at == self._stopped_at
        self._num_stopped = self._num_stopped + 1 if goes_on else int(stopped_at is not None)
        self._stopped_at = stopped_at


async def watch(client: Watched, hang_timeout_s: float) -> None:
    """Until the engine is dead: say when it stalls, and kill it when it is stopped or `hang_timeout_s` seconds late."""
    watchdog, loop = Watchdog(), asyncio.get_running_loop()
    while client.state != "dead":
        await asyncio.sleep(watchdog.PERIOD_S)
        engine = client.engine
        if client.state not in {"serving", "stalled"} or engine.pid is None:
            watchdog = Watchdog()
            continue
        watchdog.look(loop.time(), engine.heartbeat.expected, cpu_when_stopped(engine.pid))
        if watchdog.is_stalled and client.state == "serving":
            log.warning("%s stalls: it should have been heard of", engine.name)
        client.state = "stalled" if watchdog.is_stalled else "serving"
        if watchdog.is_stopped:
            engine.kill("was stopped", is_fault=False)
        elif watchdog.late_s >= hang_timeout_s:
            engine.kill("did not answer", is_fault=True)
