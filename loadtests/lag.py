"""Lateness of the generator: of its sends and of its event loop, and its use of the host.

A result depends on the generator's own timing, so every result contains it, and a late generator's result is refused.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from .alarm import Alarm

BEAT_S = 0.05  # how often the event loop's own lateness is sampled
_SCHEDSTAT = Path("/proc/self/schedstat")


@dataclass(frozen=True, slots=True)
class LagReport:
    """Lateness in milliseconds, the used share of one core, and the time of waiting for a core."""

    send_lag_p50_ms: float
    send_lag_p99_ms: float
    send_lag_max_ms: float
    loop_lag_p50_ms: float
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    cpu_percent_of_one_core: float
    runqueue_wait_percent: float | None  # of the wall time, ready to run but without a core (Linux)

    def complaint(self, max_lag_ms: float) -> str | None:
        """Return why results of this run must not be published; None if they may."""
        for name, value in (("sending", self.send_lag_p99_ms), ("the event loop", self.loop_lag_p99_ms)):
            if value > max_lag_ms:
                starved = self.runqueue_wait_percent
                why = "" if starved is None else f"; it waited for a core {starved:.0f} % of the time"
                return (
                    f"the load generator was late: p99 lag of {name} is {value:.2f} ms, the limit is "
                    f"{max_lag_ms:g} ms (max_lag_ms){why}"
                )
        return None

    def text(self) -> str:
        """Return the report in one line."""
        waited = self.runqueue_wait_percent
        core = "" if waited is None else f", waited for a core {waited:.1f} % of the time"
        p50, p99, most = self.send_lag_p50_ms, self.send_lag_p99_ms, self.send_lag_max_ms
        return (
            f"send lag p50 {p50:.2f}, p99 {p99:.2f}, at most {most:.2f} ms; event loop lag p99 "
            f"{self.loop_lag_p99_ms:.2f} ms; {self.cpu_percent_of_one_core:.1f} % of one core{core}"
        )

    def as_json(self) -> dict[str, float | None]:
        return asdict(self)


class LagMeter:
    """Collects lateness from `start` to `report`."""

    def __init__(self) -> None:
        self._sends: list[float] = []
        self._beats: list[float] = []
        self._wall = self._cpu = 0.0
        self._waited: float | None = None

    def start(self) -> None:
        self._wall, self._cpu, self._waited = time.monotonic(), time.process_time(), _runqueue_wait_s()

    def note_send(self, late_s: float) -> None:
        """Note that a request without a concurrency limit was sent `late_s` seconds after its time."""
        self._sends.append(late_s)

    async def beat(self) -> None:
        """Sample the event loop's lateness until cancelled."""
        alarm = Alarm()
        deadline = time.monotonic()
        try:
            while True:
                deadline = max(deadline + BEAT_S, time.monotonic())
                await alarm.wait_until(deadline)
                self._beats.append(time.monotonic() - deadline)
        finally:
            alarm.close()

    def report(self) -> LagReport:
        wall = max(time.monotonic() - self._wall, 1e-9)
        waited = _runqueue_wait_s()
        return LagReport(
            *_quantiles_ms(self._sends),
            *_quantiles_ms(self._beats),
            cpu_percent_of_one_core=100 * (time.process_time() - self._cpu) / wall,
            runqueue_wait_percent=None
            if waited is None or self._waited is None
            else 100 * (waited - self._waited) / wall,
        )


def _quantiles_ms(values: list[float]) -> tuple[float, float, float]:
    """Return p50, p99 and maximum of seconds, in milliseconds."""
    if not values:
        return 0.0, 0.0, 0.0
    p50, p99, most = np.percentile(values, [50, 99, 100]) * 1e3
    return float(p50), float(p99), float(most)


def _runqueue_wait_s() -> float | None:
    """Return the seconds that this thread has waited for a core: the second figure of schedstat, in ns."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    return None
