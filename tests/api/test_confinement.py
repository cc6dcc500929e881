"""Confined processes: what they cannot do, that a server's processes are confined, and what their death costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.api.serving import Server, children, environment

CONFINED = """
import errno, os, socket, subprocess, sys, threading
from neuronserve.server.host.confinement import give_up_network, go_first_when_memory_runs_out

def family(number):
    try:
        socket.socket(number).close()
    except OSError as error:
        return errno.errorcode[error.errno]

begin, of_thread = threading.Event(), []
thread = threading.Thread(target=lambda: begin.wait() and of_thread.append(family(socket.AF_INET)))
thread.start()
print(family(socket.AF_INET))
print(give_up_network())
begin.set()
thread.join()
print(of_thread[0], family(socket.AF_INET), family(socket.AF_INET6), family(socket.AF_UNIX))
code = "import socket\\ntry: socket.create_server(('127.0.0.1', 0))\\nexcept OSError as error: print(error.errno)"
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
print(child.stdout.strip() == str(errno.EAFNOSUPPORT))
first, second = socket.socketpair()
first.send(b"still there")
print(second.recv(99).decode())
before = int(open("/proc/self/oom_score_adj").read())
go_first_when_memory_runs_out()
print(int(open("/proc/self/oom_score_adj").read()) == min(1000, before + 500))
"""


def confinement(pid: int) -> tuple[str, str]:
    """How a process is filtered, and its place when memory runs out."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return status["Seccomp"], Path(f"/proc/{pid}/oom_score_adj").read_text().strip()


def test_a_confined_process_has_unix_sockets_alone_and_goes_first() -> None:
    argv = [sys.executable, "-c", CONFINED]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False)
    before, could, *after = done.stdout.splitlines()
    assert before == "None", done.stderr
    if could != "True":
        pytest.skip("this kernel filters no system calls")
    assert after == ["EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT None", "True", "still there", "True"]


def test_engines_and_sandboxes_are_confined_and_the_api_is_not(server: Server) -> None:
    own = confinement(server.process.pid)
    mode, score = confinement(server.engine_pid)
    assert (mode, int(score)) in {("2", min(1000, int(own[1]) + 500)), ("0", int(own[1]))}
    workers = [pid for pid in children(server.process.pid) if confinement(pid) == (mode, score)]
    assert len(workers) >= 2  # the engine and the chat template's
    assert own[0] == "0" or mode == own[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_sandbox_that_is_killed_or_stands_still_is_not_the_client_s_fault(server: Server, number: int) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "seed": 1}
    ask = lambda: httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)  # noqa: E731
    before = ask()
    score = confinement(server.engine_pid)
    sandboxes = [pid for pid in children(server.process.pid) if confinement(pid) == score and pid != server.engine_pid]
    assert sandboxes
    for pid in sandboxes:
        os.kill(pid, number)
    after = ask()
    assert (after.status_code, after.json()["choices"]) == (200, before.json()["choices"])
