"""Open files of this process: as many as the system allows, and how many of them are left for clients' connections."""

from __future__ import annotations

import resource
from collections.abc import Callable

from neuronserve.server.errors import StartError
from neuronserve.server.host.sysctl import sysctl

OF_SERVER = 64  # files, pipes and sockets that a server has open beside connections (37 when it is ready), and to spare
OF_ENGINE = 16  # that each engine adds to them (13: sockets, their wake-ups, the process)
LEAST_CONNECTIONS = 16
REFUSED_CONNECTIONS = 32  # at once, on their way out


def raise_open_files(read: Callable[[str], int | None] = sysctl) -> None:
    """Raise the soft limit (RLIMIT_NOFILE) to the hard one.

    macOS has no hard one by default, and takes no soft one above kern.maxfilesperproc.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = read("kern.maxfilesperproc")
    soft = hard if most is None else most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def max_connections(num_engines: int) -> int:
    """Connections that a server with so many engines can hold. Raises StartError when they are too few to serve."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = OF_SERVER + OF_ENGINE * num_engines + REFUSED_CONNECTIONS
    if limit - used < LEAST_CONNECTIONS:
        least = used + LEAST_CONNECTIONS
        raise StartError(f"this process may have {limit} files open (ulimit -n): the server needs at least {least}")
    return limit - used
