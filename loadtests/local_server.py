"""A server of our own for a run: started as a process, waited for, and ended by its id."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtests.errors import StartError
from neuronserve import COMMAND

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 40.0
_POLL_S = 0.05
_READY = re.compile(r'ready: (http://[^\s"]+)[\s"]')


def neuronserve_command(arguments: Sequence[str]) -> list[str]:
    """`neuronserve serve ...` on a free port, with this interpreter."""
    return [*COMMAND, "serve", *arguments, "--port", "0", "--disable-access-log"]


def mock_command(ttft_ms: float, itl_ms: float, max_model_len: int = 8192) -> list[str]:
    """The scripted server, with this interpreter."""
    flags = {"--ttft-ms": ttft_ms, "--itl-ms": itl_ms, "--max-model-len": max_model_len}
    return [sys.executable, "-m", "loadtests.mock_server", *(str(word) for flag in flags.items() for word in flag)]


@contextlib.contextmanager
def running(command: Sequence[str], timeout_s: float = START_TIMEOUT_S) -> Iterator[str]:
    """The server's URL, which it writes to stderr as "ready: URL". Raises StartError with what it wrote instead."""
    with tempfile.TemporaryDirectory(prefix="loadtests-") as directory:
        log = Path(directory) / "server.log"  # a pipe would have to be read all the time
        with log.open("wb") as stream:
            process = subprocess.Popen(command, stderr=stream, stdout=subprocess.DEVNULL)
        try:
            yield _wait_until_ready(process, log, timeout_s)
        finally:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while True:
        has_ended = process.poll() is not None
        text = log.read_text("utf-8", "replace")
        if found := _READY.search(text):
            return found[1]
        last = "\n".join(text.splitlines()[-5:])
        if has_ended:
            raise StartError(f"the server ended with code {process.returncode} before it was ready:\n{last}")
        if time.monotonic() > deadline:
            raise StartError(f"the server was not ready in {timeout_s:g} s:\n{last}")
        time.sleep(_POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
