"""A precise timer: one absolute deadline at a time, finer than an event loop's millisecond timers.

On Linux the kernel's timerfd wakes the loop within about 0.1 ms; elsewhere the loop's own timer is used.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import time

_CLOCK_MONOTONIC = 1  # linux/time.h
_TFD_TIMER_ABSTIME = 1  # linux/timerfd.h


class Alarm:
    """Timer for one waiter at a time. Close it when done."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._fd = -1
        if self._libc is not None and hasattr(self._libc, "timerfd_create"):
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._waiter: asyncio.Future[None] | None = None
        if self._fd >= 0:
            asyncio.get_running_loop().add_reader(self._fd, self._ring)

    async def wait_until(self, deadline: float) -> None:
        """Return at `deadline` (of time.monotonic, seconds), or at once if it has passed."""
        while (left := deadline - time.monotonic()) > 0:
            if self._fd < 0:
                await asyncio.sleep(left)
                continue
            self._waiter = asyncio.get_running_loop().create_future()
            self._arm(deadline)
            await self._waiter

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _arm(self, deadline: float) -> None:
        seconds = int(deadline)
        nanoseconds = int((deadline - seconds) * 1e9)
        # struct itimerspec: interval (none), then the first expiry; each is seconds and nanoseconds.
        value = struct.pack("@4l", 0, 0, seconds, max(nanoseconds, 1))
        assert self._libc is not None
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, value, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _ring(self) -> None:
        os.read(self._fd, 8)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
