"""CPU time of a process, and whether it is stopped: by SIGSTOP or job control, not slow, asleep or traced."""

from __future__ import annotations

import contextlib

import psutil


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU seconds of a process, in user and system mode; None when it has ended."""
    with contextlib.suppress(psutil.Error):
        used = psutil.Process(pid).cpu_times()
        return float(used.user + used.system)
    return None


def cpu_when_stopped(pid: int) -> float | None:
    """Return the CPU seconds of a stopped process; None when it is not stopped, or has ended.

    A process whose seconds are the same at two looks did not run between them. Linux has another state for a process
    that a debugger holds, which does not count; macOS shows both as stopped.
    """
    with contextlib.suppress(psutil.Error):
        if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            return cpu_seconds(pid)
    return None
