"""Whether a process of this host is stopped: by SIGSTOP or job control, rather than slow, asleep or traced."""

from __future__ import annotations

import contextlib

import psutil


def cpu_when_stopped(pid: int) -> float | None:
    """Seconds of CPU time that a stopped process has used; None where it is not stopped, or has ended.

    One whose seconds are the same at two looks did not run between them. Linux shows a process that a debugger holds
    in a state of its own, which does not count; macOS shows both as stopped.
    """
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_STOPPED:
            used = process.cpu_times()
            return float(used.user + used.system)
    return None
