"""A program that the comparison starts in a session of its own: only such programs are paused, resumed or ended."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from benchmarks.records import BenchmarkError

START_TIMEOUT_S = 600.0  # covers compiling kernels, or importing and warming up a large framework
STOP_TIMEOUT_S = 20.0
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1


class Process:
    """A child process and its descendants, by their process group."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, *, has_pipes: bool = False
    ) -> None:
        """Start it; `has_pipes` connects its standard input and output. Raises BenchmarkError if it cannot start.

        Without pipes its output goes to a file: an unread pipe would fill up and block it.
        """
        self.command = list(command)
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="benchmark-")  # noqa: SIM115  # closed in `stop`
        try:
            self._child = subprocess.Popen(
                self.command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if has_pipes else self._log,
                stderr=self._log,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # this program has one thread when it starts others
            )
        except OSError as error:
            self._log.close()
            raise BenchmarkError(f"cannot start {command[0]}: {error.strerror}") from error

    @property
    def stdin(self) -> IO[bytes]:
        assert self._child.stdin is not None
        return self._child.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._child.stdout is not None
        return self._child.stdout

    @property
    def has_ended(self) -> bool:
        return self._child.poll() is not None

    def last_words(self, lines: int = 5) -> str:
        """Return the end of its log."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode("utf-8", "replace").splitlines()[-lines:])

    def pause(self) -> None:
        """Stop all of its threads."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, by force if it does not end itself."""
        self.resume()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_TIMEOUT_S)
        self._signal(signal.SIGKILL)  # also ends processes that it left behind
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)


class Hosted:
    """Base of contenders in a process of their own. `_process` is None before the start and after the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: Process | None = None
        self._about: dict[str, str] = {}

    def pause(self) -> None:
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        if self._process is not None:
            self._process.resume()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def about(self) -> dict[str, str]:
        return self._about


def _end_with_parent() -> None:
    """Make a child end with its parent, since a paused child would not notice its end (prctl(2), Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for_url(process: Process, url: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Wait until `url` responds with 200. Raises BenchmarkError if the process ends first, or at the timeout."""
    deadline = time.monotonic() + timeout_s
    while not _answers(url):
        if process.has_ended:
            raise BenchmarkError(f"{Path(process.command[0]).name} ended:\n{process.last_words()}")
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{url} did not answer within {timeout_s:g} s:\n{process.last_words()}")
        time.sleep(_POLL_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """Return a free port of this host."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def cpu_seconds() -> dict[str, float]:
    """Return processor seconds so far of this client, of its child the API process, and of that one's engines."""
    [api] = psutil.Process().children()
    taken = {"client": [psutil.Process()], "API": [api], "engine": api.children(recursive=True)}
    return {name: sum(sum(each.cpu_times()[:2]) for each in processes) for name, processes in taken.items()}


def throughput_in_process(arguments: Sequence[str], report: Path) -> float:
    """Return the output tokens per second of `bench throughput`. Raises BenchmarkError."""
    command = [sys.executable, "-m", "neuronserve", "bench", "throughput", *arguments, "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"bench throughput failed: {done.stderr}")
    return float(json.loads(report.read_text())["output_tokens_per_s"])
