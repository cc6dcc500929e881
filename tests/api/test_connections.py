"""More clients than the process may have files open: each gets an answer, and the operator a count and a line."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.api.serving import Server, command, running_server, until

BODY = b'{"prompt": "a", "max_tokens": 2}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
REQUEST = HEAD + b"content-length: %d\r\n\r\n%s"
QUIET = ("--disable-access-log", "--disable-log-stats")
LIMIT = 160


def prlimit(soft: int, hard: int) -> tuple[str, str]:
    return "prlimit", f"--nofile={soft}:{hard}"


def open_limit(pid: int) -> list[str]:
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in limits if line.startswith("Max open files")).split()[3:5]


def status_of(connection: socket.socket) -> str:
    return connection.recv(65536).split()[1].decode()


@pytest.mark.slow
def test_each_of_too_many_clients_is_answered_and_those_refused_are_counted(checkpoint: Path) -> None:
    with running_server(checkpoint, *QUIET, under=prlimit(LIMIT, LIMIT)) as server, contextlib.ExitStack() as clients:
        assert "--max-num-queued-reqs is 45, not 1024: the process may open no more files" in server.log
        connections = [
            clients.enter_context(socket.create_connection(("127.0.0.1", server.port), 60)) for _ in range(LIMIT)
        ]
        for connection in connections:
            connection.sendall(REQUEST % (len(BODY), BODY))
        seen = Counter(map(status_of, connections))
        assert seen["200"] + seen["429"] == LIMIT
        assert seen["429"] >= LIMIT - 48  # of more connections than can be open, and of more sequences than are queued
        clients.close()
        until(lambda: httpx.get(server.url + "/health").status_code == 200)
        metrics = httpx.get(server.url + "/metrics").text.splitlines()
        counts = [line for line in metrics if line.startswith("vllm:admission_rejections_total")]
        assert sum(float(line.split()[1]) for line in counts) >= seen["429"]
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        words = server.last_words()
    assert "connections refused: 48 are open, which is what the limit of open files (ulimit -n) leaves" in words
    assert "Traceback" not in words


def test_a_refused_connection_says_why_and_when_to_come_back(checkpoint: Path) -> None:
    with running_server(checkpoint, *QUIET, under=prlimit(LIMIT, LIMIT)) as server, contextlib.ExitStack() as clients:
        for _ in range(48):
            clients.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
        refused = httpx.get(server.url + "/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_connections")
        assert refused.json()["error"]["message"] == "The server has 48 connections open, as many as it can."
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")


@pytest.mark.slow
def test_the_soft_limit_is_raised_to_the_hard_one(checkpoint: Path) -> None:
    with running_server(checkpoint, under=prlimit(128, 512)) as server:
        assert open_limit(server.process.pid) == open_limit(server.engine_pid) == ["512", "512"]


@pytest.mark.thorough
def test_a_connection_that_clients_keep_is_not_closed_under_them(server: Server) -> None:
    """httpx, and so OpenAI's client, uses one again that was idle for up to five seconds."""
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with contextlib.closing(client):
        client.connect()
        first = client.sock
        for idle_s in (6, 0):
            client.request("POST", "/v1/completions", BODY, {"content-type": "application/json"})
            answer = client.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            time.sleep(idle_s)
        assert client.sock is first


@pytest.mark.parametrize(("engines", "least"), [("1", 128), ("2", 144)])
def test_too_few_files_are_one_line_at_the_start(checkpoint: Path, engines: str, least: int) -> None:
    argv = [*prlimit(90, 90), *command("serve", str(checkpoint), "--port", "0", "--data-parallel-size", engines)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    wanted = f"this process may have 90 files open (ulimit -n): the server needs at least {least}"
    assert (ended.returncode, ended.stderr) == (2, f"neuronserve: error: {wanted}\n")
