"""A replica of the Ray Serve deployment: this server whole, as a process at a port of the replica's node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import ray

from ..errors import StartError
from ..host.cpu_quota import host_threads
from ..host.memory import GIB, available_bytes
from ..host.private_file import open_private
from ..route.address import parse
from ..route.upstream import Upstream
from ..settings.sources import process_environment
from .members import ADDRESS

POLL_S = 0.05
BATCH_S = 0.01  # parts of a stream that follow within this time of another go together; the first goes at once
STATS_S = 2.0  # that a measured load is used for
BUSY, QUEUED = "busy", "queued_tokens"  # names of a replica's load
# Runs a module as `python -m` does, until its parent ends.
RUN = (
    "import runpy, sys; from neuronserve.server.host.confinement import end_with_parent as end; "
    "end(); del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
PLACE = frozenset({"NEURONSERVE_HOST", "NEURONSERVE_PORT"})  # variables
METRICS = b"vllm:num_requests_running", b"neuronserve:queued_prompt_tokens"


class ServerReplica:
    """Starts a server; its health, its load and its end are the replica's.

    `handle.options(stream=True).remote(path, body)` yields an answer's body for other deployments of the cluster.
    """

    async def __init__(  # type: ignore[misc]  # Serve waits for it
        self, program: str, settings: Mapping[str, Any], key: str, num_places: int, grace_s: float
    ) -> None:
        """Start `python -m program serve` with `settings`. Raises StartError with the reason when it does not start.

        `key` is one of its API keys, if any; `num_places` of the batch are its capacity; `grace_s` the time to drain.
        """
        self._key, self._num_places, self._grace_s = key, num_places, grace_s
        self._folder = tempfile.TemporaryDirectory(prefix="neuronserve-ray-")
        config, ready = (Path(self._folder.name) / name for name in ("config.json", "ready.json"))
        own = {"host": ray.util.get_node_ip_address(), "port": 0, "ready_file": str(ready), "data_dir": ""}
        own |= {"host_memory_gib": available_bytes() / GIB * min(1, settings["cpu_threads"] / host_threads())}
        with open_private(config, "wb") as file:
            file.write(json.dumps(own | dict(settings)).encode())
        argv = [sys.executable, "-c", RUN, program, "serve", "--config", str(config)]
        # The address of an image's one server would come before the file.
        environment = {name: value for name, value in process_environment().items() if name not in PLACE}
        self._process = subprocess.Popen(argv, stderr=subprocess.PIPE, env=environment)
        self._last_lines: deque[str] = deque(maxlen=5)
        threading.Thread(target=self._log, name="server-log", daemon=True).start()
        while not ready.exists():
            self._require_running()
            await asyncio.sleep(POLL_S)
        self._address = parse(json.loads(ready.read_text())["url"], "ready file")
        self._stats, self._stats_at = dict[str, float](), 0.0

    def record_replica_metadata(self) -> dict[str, str]:
        """Return the server's address, for routers."""
        return {ADDRESS: self._address.name}

    async def check_health(self) -> None:
        """Raise StartError when the server has ended; it replaces engines that die by itself."""
        self._require_running()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load: the part of the batch's places in use, and prompt tokens that wait."""
        if time.monotonic() - self._stats_at > STATS_S:
            text = b"".join([part async for part in self._answer(b"GET", "/metrics", b"")])
            totals = [sum(map(float, re.findall(rb"^%b{.*} (\S+)$" % name, text, re.MULTILINE))) for name in METRICS]
            self._stats = {BUSY: totals[0] / self._num_places, QUEUED: totals[1]}
            self._stats_at = time.monotonic()
        return self._stats

    async def __call__(self, path: str, body: bytes) -> AsyncIterator[bytes]:
        """Yield the parts of the answer to a POST request. Raises RuntimeError for a refusal, and Lost."""
        async for part in self._answer(b"POST", path, body):
            yield part
            await asyncio.sleep(BATCH_S)

    async def __del__(self) -> None:
        """Drain the server and end it."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, self._grace_s)
        self._process.kill()
        self._folder.cleanup()

    async def _answer(self, method: bytes, path: str, body: bytes) -> AsyncIterator[bytes]:
        upstream = Upstream(lambda: None)
        await asyncio.get_running_loop().create_connection(lambda: upstream, self._address.host, self._address.port)
        head = f"{method.decode()} {path} HTTP/1.1\r\nhost: {self._address.host_header.decode()}\r\n"
        head += f"authorization: Bearer {self._key}\r\n" * bool(self._key) + "content-type: application/json\r\n"
        try:
            await upstream.ask(f"{head}content-length: {len(body)}\r\n\r\n".encode(), body)
            if upstream.status >= 400:
                raise RuntimeError(f"{path} is refused with {upstream.status}: {(await upstream.read()).decode()}")
            while part := await upstream.read():
                yield part
        finally:
            upstream.close()

    def _require_running(self) -> None:
        if (code := self._process.poll()) is not None:
            raise StartError(f"the server has ended with exit code {code}: {''.join(self._last_lines).strip()}")

    def _log(self) -> None:
        """Copy the server's log to the worker's."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_lines.append(line.decode(errors="replace"))
            sys.stderr.write(self._last_lines[-1])
