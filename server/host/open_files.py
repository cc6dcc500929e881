"""Limit of open files of this process, and the connections of clients that it leaves room for."""

from __future__ import annotations

import resource
from collections.abc import Callable

from ..errors import StartError
from .sysctl import sysctl

OF_SERVER = 64  # files, pipes and sockets of a server without connections: 37 when it is ready, and spare ones
OF_ENGINE = 16  # for each engine: 13 (sockets, their wake-ups, the process), and spare ones
LEAST_CONNECTIONS = 16
REFUSED_CONNECTIONS = 32  # being closed at once


def raise_open_files(read: Callable[[str], int | None] = sysctl) -> None:
    """Raise the soft limit (RLIMIT_NOFILE) to the hard one.

    macOS has no hard limit by default, and accepts no soft limit above kern.maxfilesperproc.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = read("kern.maxfilesperproc")
    soft = hard if most is None else most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def max_connections(num_engines: int) -> int:
    """Return the connections that a server with `num_engines` can hold. Raises StartError when they are too few."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = OF_SERVER + OF_ENGINE * num_engines + REFUSED_CONNECTIONS
    if limit - used < LEAST_CONNECTIONS:
        least = used + LEAST_CONNECTIONS
        raise StartError(f"this process may have {limit} files open (ulimit -n): the server needs at least {least}")
    return limit - used
