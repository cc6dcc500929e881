"""Listening sockets of a server: its own, and the socket of the process that answers health probes."""

from __future__ import annotations

import logging
import socket
from typing import get_args

from ..errors import StartError
from .health_process import HealthProcess
from .phase import Phase

log = logging.getLogger("neuronserve")


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, bound before anything slow starts. Raises StartError when that fails."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise StartError(f"--host {host} --port {port}: cannot listen there: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def health_process(host: str, port: int | None) -> HealthProcess | None:
    """Return the process that answers probes, if one is configured. Raises StartError when its port is taken."""
    if port is None:
        return None
    listener = bind(host, port)
    log.info("health probes: %s/health/live", address(listener))
    return HealthProcess(listener, get_args(Phase))


def address(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
