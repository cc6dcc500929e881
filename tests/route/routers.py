"""A real `neuronserve route` process in front of real servers with the fake model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import httpx

from tests.api.serving import (
    Server,
    children,
    command,
    command_line,
    environment,
    running,
    running_server,
)


def running_router(*args: str) -> AbstractContextManager[Server]:
    """Start a router on a free port, wait until a replica is up, and end it afterwards."""
    return running(command("route", *args, "--port", "0", program="neuronserve"), environment())


@contextlib.contextmanager
def replicas(model: Path, count: int, *args: str) -> Iterator[Sequence[Server]]:
    """Start servers with the fake model."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(running_server(model, *args)) for _ in range(count)]


def metric(url: str, name: str) -> dict[str, float]:
    """Values of one of the router's metrics, by replica."""
    text = httpx.get(f"{url}/metrics").text
    return {
        found[1]: float(found[2]) for found in re.finditer(rf'^{name}{{replica="([^"]+)"}} (\S+)$', text, re.MULTILINE)
    }


def replica_pids(server: Server) -> list[int]:
    """Pids of the replicas, which alone of the router's children are spawned by it."""
    return [pid for pid in children(server.process.pid) if b"spawn_main" in command_line(pid)]
