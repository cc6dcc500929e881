"""Number of host threads that can run at once: the allowed CPUs, or fewer when a control group has a quota.

A pod with a limit of 2 CPUs may run on all CPUs of its node, but for 2 CPU seconds a second. More threads than that
would use up the quota early in each period, and stand still until the next one with a step half done.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from .affinity import allowed_cpus
from .sysctl import sysctl

V1_FOLDERS = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct")


def host_threads(root: Path = Path("/"), read: Callable[[str], int | None] = sysctl) -> int:
    """Return the threads that can run at once: the CPUs of this process, or the least quota of its groups, rounded up.

    Only a Mac's fast CPUs count (Apple: hw.perflevel0): workers have equal shares, so all would wait for a slow one.
    `root` is the root of the file system that holds /proc and /sys; macOS has neither, and no quotas.
    """
    quota = cpu_quota(root)
    fast = read("hw.perflevel0.logicalcpu") or len(allowed_cpus())
    return max(1, min(len(allowed_cpus()), fast, sys.maxsize if quota is None else math.ceil(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU seconds a second that the groups of this process allow; None without a limit."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU seconds a second of each group of this process, and of their parents, that has a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        own = PurePosixPath(path)
        for group in (own, *own.parents):
            folder = str(group).lstrip("/")
            if not names:
                yield from _ratio(_text(root / "sys/fs/cgroup" / folder / "cpu.max").split())
            elif "cpu" in names.split(","):
                for mount in V1_FOLDERS:
                    files = (root / mount / folder / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
                    yield from _ratio([_text(file).strip() for file in files])


def _ratio(words: list[str]) -> Iterator[float]:
    """Yield quota / period, both in microseconds; nothing without a limit, which is the word max or -1."""
    if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
        yield int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    """Return the text of a file of /proc or /sys; empty when there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
