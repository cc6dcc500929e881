"""How many host threads there is processor time for: the CPUs allowed, or less where a control group has a quota.

A pod with a limit of 2 CPUs may run on all CPUs of its node, but for 2 CPU seconds a second. More threads than that
would use the quota up early in each period, and stand still until the next with a step half done.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from neuronserve.server.host.affinity import allowed_cpus
from neuronserve.server.host.sysctl import sysctl

V1_FOLDERS = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")


def host_threads(root: Path = Path("/"), read: Callable[[str], int | None] = sysctl) -> int:
    """Threads that can run at once: the CPUs of this process, or the least quota of its groups, rounded up.

    Of a Mac's CPUs the fast ones (Apple: hw.perflevel0): workers have equal shares, so all would wait for a slow one.
    `root` is the root of the file system that holds /proc and /sys; macOS has neither, nor quotas.
    """
    quota = cpu_quota(root)
    fast = read("hw.perflevel0.logicalcpu") or len(allowed_cpus())
    return max(1, min(len(allowed_cpus()), fast, sys.maxsize if quota is None else math.ceil(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs' worth of time that the groups of this process leave it; None without a limit."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    """CPUs' worth of time of each group of this process, and of all their parents, that has a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        own = PurePosixPath(path)
        for group in (own, *own.parents):
            place = str(group).lstrip("/")
            if not names:
                yield from _ratio(_text(root / "sys/fs/cgroup" / place / "cpu.max").split())
            elif "cpu" in names.split(","):
                for folder in V1_FOLDERS:
                    files = (root / folder / place / f"cpu.cfs_{what}_us" for what in ("quota", "period"))
                    yield from _ratio([_text(file).strip() for file in files])


def _ratio(words: list[str]) -> Iterator[float]:
    """Quota by period, both in microseconds; nothing where there is no limit: the word max, or -1."""
    if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
        yield int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    """Text of a file of /proc or /sys; empty when there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
