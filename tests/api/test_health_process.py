"""Health probes on a port of their own, answered while the server's event loop stands still."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from pathlib import Path

import httpx
import pytest

from neuronserve.server.api.health_process import LIVE_S, MAX_HEAD_BYTES, READY_S, answer
from tests.api.serving import PATIENCE_S, Server, running_server, until, write_checkpoint


def health_url(server: Server) -> str:
    found = re.search(r"health probes: (http://[^/]+)/health/live", server.log)
    assert found is not None, server.log
    return found[1]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_probes_are_answered_while_the_server_stands_still_and_no_longer_than_it_lives(
    tmp_path: Path, replicas: int
) -> None:
    options = ("--health-port", "0", "--replicas", str(replicas), "--data-dir", str(tmp_path / "data"))
    with running_server(write_checkpoint(tmp_path / "model"), *options) as server:
        url = health_url(server)
        until(lambda: httpx.get(url + "/health/ready").status_code == 200)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            for path in ("/health/live", "/health/ready", "/health", "/ping"):
                assert httpx.get(url + path, timeout=PATIENCE_S).json() == {"status": "ready"}
            assert httpx.head(url + "/health/live").status_code == 200
            assert httpx.post(url + "/health/live").status_code == 405
            assert httpx.get(url + "/metrics").status_code == 404
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        assert httpx.get(server.url + "/health/live").json() == {"status": "ready"}
        server.signal(signal.SIGKILL)
        server.wait()
        until(lambda: not is_open(url))


def is_open(url: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 5):
        return True
    return False


def test_odd_clients_keep_no_probe_from_its_answer(tmp_path: Path) -> None:
    with (
        running_server(write_checkpoint(tmp_path / "model"), "--health-port", "0") as server,
        contextlib.ExitStack() as stack,
    ):
        url = health_url(server)
        for data in (b"", b"GET", b"\x00" * 100, b"a" * (2 * MAX_HEAD_BYTES), b"\r\n\r\n", b"GET /health/live\r\n\r\n"):
            odd = stack.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))))
            with contextlib.suppress(OSError):
                odd.sendall(data)
            assert httpx.get(url + "/health/live", timeout=PATIENCE_S).status_code == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        until(lambda: not is_open(url))


@pytest.mark.parametrize(
    ("path", "phase", "age_s", "expected"),
    [
        ("/health/live", "loading", 0.0, (200, "loading")),
        ("/health/live", "ready", LIVE_S - 1, (200, "ready")),
        ("/health/live", "ready", LIVE_S + 1, (503, "stalled")),
        ("/health/live", "dead", 0.0, (503, "dead")),
        ("/health/live", "degraded", 0.0, (503, "degraded")),
        ("/health/live", "draining", 0.0, (200, "draining")),
        ("/health/ready", "ready", READY_S - 1, (200, "ready")),
        ("/health/ready", "ready", READY_S + 1, (503, "stalled")),
        ("/health/ready", "draining", 0.0, (503, "draining")),
        ("/health/ready", "loading", 0.0, (503, "loading")),
    ],
)
def test_a_probe_is_told_the_phase_until_it_is_too_old(
    path: str, phase: str, age_s: float, expected: tuple[int, str]
) -> None:
    assert answer(path, phase, age_s) == expected


def test_a_port_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    from tests.api.serving import run_command

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_command(
            "serve", str(write_checkpoint(tmp_path / "model")), "--port", "0", "--health-port", str(port)
        )
    assert done.returncode == 2
    assert f"--port {port}: cannot listen there" in done.stderr
