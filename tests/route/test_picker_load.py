"""Time that `neuronserve pick` adds to requests through Envoy, and its processor time: figures to read.

`pytest -s -m chaos tests/route/test_picker_load.py`, after `make test-slow` has installed Envoy.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import uvloop

from tests.api.serving import environment
from tests.route.envoys import BINARY, running_envoy
from tests.route.pickers import running_picker

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(not BINARY.exists(), reason="`make test-slow` installs Envoy")]
ROUNDS = 3


@contextlib.contextmanager
def sink(port: int, pause_s: float) -> Iterator[str]:
    argv = [sys.executable, "-m", "tests.route.sink", str(port), str(pause_s)]
    process = subprocess.Popen(argv, env=environment())
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


async def load(url: str, size: int, connections: int, count: int) -> list[float]:
    """Send requests as fast as they are answered; their times in milliseconds."""
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"word " * (size // 5))
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    times: list[float] = []

    async def send() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(count // connections):
            begin = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head.partition(b"\r\n")[0]
            if b"content-length" in head:
                await reader.readexactly(2)
            else:
                await reader.readuntil(b"0\r\n\r\n")
            times.append(1e3 * (time.perf_counter() - begin))
        writer.close()

    await asyncio.gather(*(send() for _ in range(connections)))
    return times


@pytest.mark.parametrize(
    ("size", "connections", "pause_s", "count"),
    [(1_000, 1, 0.0, 600), (1_000, 20, 0.0, 2000), (220_000, 1, 0.0, 200), (220_000, 20, 0.25, 400)],
)
def test_time_added(
    free_ports: list[int], tmp_path: Path, size: int, connections: int, pause_s: float, count: int
) -> None:
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(sink(free_ports[0], pause_s))
        picker = stack.enter_context(running_picker(address))
        urls = stack.enter_context(running_envoy(picker.server.url, [address], tmp_path))
        process = psutil.Process(picker.server.process.pid)
        added, rates, cpu_ms = [], [], []
        for _ in range(ROUNDS):
            plain = uvloop.run(load(urls[1], size, connections, count))
            begin, used = time.perf_counter(), sum(process.cpu_times()[:2])
            picked = uvloop.run(load(urls[0], size, connections, count))
            rates.append(len(picked) / (time.perf_counter() - begin))
            cpu_ms.append(1e3 * (sum(process.cpu_times()[:2]) - used) / len(picked))
            added.append(statistics.median(picked) - statistics.median(plain))
    figures = f"+{statistics.median(added):.2f} ms p50, {statistics.median(rates):.0f} requests/s"
    print(f"\n{size} bytes, {connections} connections: {figures}, {statistics.median(cpu_ms):.2f} ms of the picker")
