"""Whether a process of this host is stopped: by SIGSTOP or job control, rather than slow, asleep or traced."""

from __future__ import annotations

import contextlib

import psutil


def cpu_seconds(pid: int) -> float | None:
    """Seconds of CPU time that a process has used, in user and system mode; None where it has ended."""
    with contextlib.suppress(psutil.Error):
        used = psutil.Process(pid).cpu_times()
        return float(used.user + used.system)
    return None


def cpu_when_stopped(pid: int) -> float | None:
    """Seconds of CPU time that a stopped process has used; None where it is not stopped, or has ended.

    One whose seconds are the same at two looks did not run between them. Linux shows a process that a debugger holds
    in a state of its own, which does not count; macOS shows both as stopped.
    """
    with contextlib.suppress(psutil.Error):
        if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            return cpu_seconds(pid)
    return None
