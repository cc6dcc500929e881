"""Time of writes to streams: at once, or several steps' frames together while writes would take much of the time.

A write costs the same for one frame as for several: a call of the kernel, and a wake-up of the client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WRITE_S = 10e-6  # CPU time of one write to a local client (`python -m benchmarks.promises --only HTTP`)
SHARE = 1 / 32  # of the time that writes may take, the first of each round aside
MAX_WAIT_S = 0.02


class WritePace:
    """Rounds of writes, so far apart that they take a small share of the time. One stream alone never waits."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._next_s = 0.0  # when the next round may begin, by the monotonic clock

    def wait(self, write: Callable[[], None]) -> None:
        """Call `write` in the next round, which begins in this turn of the event loop unless the last was just now."""
        if not self._waiting:
            loop, delay_s = asyncio.get_running_loop(), self._next_s - time.monotonic()
            if delay_s > 0:
                loop.call_later(delay_s, self._write)
            else:
                loop.call_soon(self._write)
        self._waiting.append(write)

    def _write(self) -> None:
        writes, self._waiting = self._waiting, []
        for write in writes:
            write()
        self._next_s = time.monotonic() + min(MAX_WAIT_S, (len(writes) - 1) * WRITE_S / SHARE)
