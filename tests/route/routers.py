"""A real `neuronserve route` process in front of real servers with the fake model."""

from __future__ import annotations

import contextlib
import fcntl
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from tests.api.serving import (
    LOG_BYTES,
    ROOT,
    Server,
    children,
    command,
    command_line,
    environment,
    read_until,
    running_server,
)


@contextlib.contextmanager
def running_router(*args: str) -> Iterator[Server]:
    """Start a router on a free port, wait until a replica is up, and end it afterwards."""
    argv = command("route", *args, "--port", "0", program="neuronserve")
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, cwd=ROOT, env=environment())
    assert process.stderr is not None
    fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, LOG_BYTES)
    try:
        log = read_until(process, rb"ready: (https?://[^\s\"]+)")
        found = re.search(r"ready: (https?://[^\s\"]+)", log)
        assert found is not None, log
        yield Server(process, found[1], log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        if process.poll() is None:
            process.kill()
        process.wait(10)
        process.stderr.close()


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
