"""Detection of engines that stall, by their heartbeat; engines that hang or are stopped are killed."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal, Protocol

from ..host.stopped import cpu_when_stopped
from .handle import EngineHandle

EngineState = Literal["loading", "serving", "stalled", "recovering", "dead"]
log = logging.getLogger("neuronserve.engine")


class Watched(Protocol):
    """An engine's client."""

    state: EngineState
    engine: EngineHandle  # current one


class Watchdog:
    """Decides whether an engine stalls, by its heartbeat and by whether its process is stopped.

    Pure: times are arguments. Time in which the watcher itself could not run is ignored: a host that stands still
    stalls every process. A stopped process is not in a long step, so its deadline is not awaited. But it must be
    stopped in several looks without using CPU in between, because some tools stop and continue a process in turns.
    """

    STALLED_S = 0.75  # lateness that is reported
    PERIOD_S = 0.1  # between two looks
    STOPPED_LOOKS = 4  # in a row, after which the process counts as stopped

    def __init__(self) -> None:
        self._looked: float | None = None
        self._stopped_at: float | None = None  # CPU seconds that it had used, if it was stopped at the last look
        self._num_stopped = 0  # consecutive looks at a stopped process that did not run in between
        self.late_s = 0.0

    @property
    def is_stalled(self) -> bool:
        """True when the engine is late or its process does not run."""
        return self.late_s >= self.STALLED_S or self._num_stopped > 1

    @property
    def is_stopped(self) -> bool:
        """True when its process was stopped and is not continued."""
        return self._num_stopped >= self.STOPPED_LOOKS

    def look(self, now: float, expected: float, stopped_at: float | None = None) -> None:
        """Record the deadline at time `now`, and the CPU seconds of the process if it is stopped."""
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
    """Report stalls until the engine is dead; kill it when it is stopped or `hang_timeout_s` seconds late."""
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
