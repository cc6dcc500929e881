"""A small process that answers health probes on a port of its own, independently of the server's event loop.

The event loop writes its phase and the time into shared memory, and a probe is answered from there. So a long task of
the loop fails no probe, while a loop that stands still for a minute fails the liveness probe.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from multiprocessing.process import BaseProcess, parent_process

from ..host.confinement import give_up_network
from ..host.fork_server import light_context, no_interrupts_for_children
from ..host.shared_file import SharedFile

BEAT_S = 0.5
READY_S, LIVE_S = 10.0, 60.0  # without a beat, after which the server is not ready, or not alive
READY = ("/health/ready", "/health", "/ping")
LIVE = "/health/live"
FAILED = ("dead", "degraded")  # phases that only a restart ends
STALLED = "stalled"  # no beat: the state of the event loop is unknown
MAX_HEAD_BYTES, HEAD_TIMEOUT_S, MAX_PROBES = 8192, 5.0, 64
_BEAT = struct.Struct("=dq")  # time of the beat, number of the phase


class HealthProcess:
    """The process, and the shared memory that the server writes to."""

    def __init__(self, listener: socket.socket, phases: Sequence[str]) -> None:
        """Start the process with its listening socket, which this process then closes."""
        self._phases = phases
        file = SharedFile("health", _BEAT.size)
        self._memory = file.map()
        self._beat(phases[0])
        args = (listener, file, tuple(phases))
        self._process: BaseProcess = light_context().Process(target=_run, args=args, name="health", daemon=True)
        with no_interrupts_for_children():
            self._process.start()
        listener.close()

    async def follow(self, phase: Callable[[], str]) -> None:
        """Write the phase repeatedly; never return."""
        while True:
            self._beat(phase())
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _beat(self, phase: str) -> None:
        _BEAT.pack_into(self._memory, 0, time.monotonic(), self._phases.index(phase))


def answer(path: str, phase: str, age_s: float) -> tuple[int, str]:
    """Return the status of a probe and the phase in its answer, `age_s` after the last beat."""
    if path == LIVE:
        reported = phase if age_s < LIVE_S else STALLED
        return (503 if age_s >= LIVE_S or phase in FAILED else 200), reported
    if path in READY:
        reported = phase if age_s < READY_S else STALLED
        return (200 if reported == "ready" else 503), reported
    return 404, "not found"


def _run(listener: socket.socket, file: SharedFile, phases: Sequence[str]) -> None:
    """Main function of the process."""
    give_up_network()
    asyncio.run(_serve(listener, file, phases))


async def _serve(listener: socket.socket, file: SharedFile, phases: Sequence[str]) -> None:
    memory, num_open = file.map(), 0

    async def probe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_open
        num_open += 1
        try:
            if num_open <= MAX_PROBES:
                async with asyncio.timeout(HEAD_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                beat_s, number = _BEAT.unpack_from(memory)
                writer.write(_response(head, phases[number], time.monotonic() - beat_s))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has left, or sends no request
        finally:
            num_open -= 1
            writer.close()

    async with await asyncio.start_server(probe, sock=listener, limit=MAX_HEAD_BYTES):
        await _parents_end()


async def _parents_end() -> None:
    """Wait until the server's process has ended."""
    parent, has_ended = parent_process(), asyncio.Event()
    assert parent is not None
    asyncio.get_running_loop().add_reader(parent.sentinel, has_ended.set)
    await has_ended.wait()


def _response(head: bytes, phase: str, age_s: float) -> bytes:
    parts = head.partition(b"\r\n")[0].split()
    method, target = (parts[0], parts[1].decode("latin-1")) if len(parts) == 3 else (b"", "")
    status, reported = answer(target.partition("?")[0], phase, age_s)
    if method not in {b"GET", b"HEAD"}:
        status, reported = 405, "only GET"
    body = json.dumps({"status": reported}, separators=(",", ":")).encode()
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == b"HEAD" else body)
