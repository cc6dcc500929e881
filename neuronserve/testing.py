"""A server for tests with any test runner: it is a process that is started, waited for, and ended by its id.

    with running_server(pace="device") as server:
        client = openai.OpenAI(base_url=server.base_url, api_key=server.api_key)

Only the standard library is needed, and the tests' process imports nothing of the server.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuronserve import COMMAND

START_TIMEOUT_S = 300.0  # compiling kernels for a new host takes a minute
STOP_TIMEOUT_S = 40.0
NO_KEY = "none"  # for clients that require a key
LOG_LINES = 20  # of a server that did not start
REPORT_S = 5.0  # between two lines on stderr about a long start
_POLL_S = 0.05


class ServerFailed(Exception):
    """The server has ended, or was not ready in time. The message has the last lines of its log."""


class ScriptRefused(Exception):
    """The server takes no such rules. The message has its answer."""


@dataclass(frozen=True)
class Server:
    """A server that is ready."""

    url: str  # http://HOST:PORT
    model: str
    pid: int
    api_key: str = NO_KEY

    @property
    def base_url(self) -> str:
        """The `base_url` of OpenAI's clients."""
        return f"{self.url}/v1"

    @property
    def env(self) -> dict[str, str]:
        """Environment variables by which clients of OpenAI and Anthropic find the server."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.api_key,
        }

    @contextlib.contextmanager
    def script(self, *rules: dict[str, Any]) -> Iterator[None]:
        """Give these answers and faults until the block ends, as `--script` has them. Raises ScriptRefused.

        The server has `--allow-script`, as `running_server` starts it.
        """
        number = self._ask("POST", "/admin/script", {"rules": rules})["number"]
        try:
            yield
        finally:
            self._ask("DELETE", f"/admin/script/{number}")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.api_key}"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            raise ScriptRefused(error.read().decode("utf-8", "replace")) from error


@contextlib.contextmanager
def running_server(
    model: str | None = None,
    *,
    device: str | None = None,
    pace: str | None = None,
    api_key: str | None = None,
    args: Sequence[str] = (),
    timeout_s: float = START_TIMEOUT_S,
) -> Iterator[Server]:
    """Run `neuronserve serve` on a free port until the block ends. The default `model` is the shipped one.

    `args` are further flags. Raises ServerFailed.
    """
    flags = {"--device": device, "--pace": pace, "--api-key": api_key}
    given = [word for flag, value in flags.items() if value is not None for word in (flag, value)]
    arguments = ["serve", *([model] if model else []), *given, "--allow-script", *args]
    with running([*COMMAND, *arguments, "--port", "0"], timeout_s) as ready:
        yield Server(ready["url"], ready["model"], ready["pid"], api_key or NO_KEY)


@contextlib.contextmanager
def replaying(cassette: str | Path, args: Sequence[str] = (), timeout_s: float = START_TIMEOUT_S) -> Iterator[Server]:
    """Run `neuronserve replay` of a cassette until the block ends. Raises ServerFailed."""
    with running([*COMMAND, "replay", str(cassette), "--port", "0", *args], timeout_s) as ready:
        yield Server(ready["url"], ready["model"], ready["pid"])


@contextlib.contextmanager
def running(command: Sequence[str], timeout_s: float = START_TIMEOUT_S) -> Iterator[dict[str, Any]]:
    """Run a command with `--ready-file` until the block ends. Yields the content of that file. Raises ServerFailed.

    While a long start goes on, as the first one does, which compiles, its last line of log is shown on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="neuronserve-test-") as directory:
        log, ready = Path(directory) / "server.log", Path(directory) / "ready.json"
        with log.open("wb") as stream:  # a pipe would have to be read all the time
            process = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=stream, stderr=stream)
        try:
            yield _wait_until_ready(process, ready, log, timeout_s)
        finally:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], ready: Path, log: Path, timeout_s: float) -> dict[str, Any]:
    begin_s = shown_s = time.monotonic()
    shown = ""
    while not ready.exists():
        now_s = time.monotonic()
        has_ended = process.poll() is not None
        if has_ended or now_s > begin_s + timeout_s:
            what = f"ended with code {process.returncode}" if has_ended else f"was not ready in {timeout_s:g} s"
            raise ServerFailed("\n".join([f"the server {what}:", *_last_lines(log, LOG_LINES)]))
        if now_s >= shown_s + REPORT_S and (line := "".join(_last_lines(log, 1))) != shown:
            shown_s, shown = now_s, line
            print(f"neuronserve: {line}", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)
    found: dict[str, Any] = json.loads(ready.read_text("utf-8"))
    return found


def _last_lines(log: Path, count: int) -> list[str]:
    return log.read_text("utf-8", "replace").splitlines()[-count:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
