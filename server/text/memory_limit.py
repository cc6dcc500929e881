"""How a process is held to a number of bytes of memory: by its system, or by whoever waits for it.

On Linux a limit of the address space turns an allocation too much into a MemoryError. macOS takes no such limit below
what its shared libraries map. There, and wherever asked for, the parent looks at the process's resident memory while it
waits, and ends the process that has more: a little late, by what can be written in WATCH_S, and nothing is caught by
the work itself.
"""

from __future__ import annotations

import resource
import sys
import time
from multiprocessing.connection import Connection
from typing import Any, Literal

import psutil

MemoryLimit = Literal["address_space", "resident"]

HOST_LIMIT: MemoryLimit = "resident" if sys.platform == "darwin" else "address_space"
LIMITS: tuple[MemoryLimit, ...] = ("address_space", "resident")
WATCH_S = 0.02  # between two looks


def limit_own_memory(limit: MemoryLimit, memory_bytes: int) -> None:
    """Called in the process itself before its work, which may map so many bytes beyond what is mapped by now.

    What a process is forked from has mapped a compiler and a thread pool for every CPU. A lower limit that the server
    was started with (`ulimit -v`) stays.
    """
    if limit == "address_space":
        most = psutil.Process().memory_info().vms + memory_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def grows_beyond(pid: int, memory_bytes: int, connection: Connection[Any, Any], timeout_s: float) -> bool:
    """Wait until the process says something or is late; True as soon as it has more memory than it may."""
    end = time.monotonic() + timeout_s
    while not connection.poll(max(0.0, min(WATCH_S, end - time.monotonic()))) and time.monotonic() < end:
        if _resident_bytes(pid) > memory_bytes:
            return True
    return False


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:  # it has ended, which its connection says too
        return 0
