"""A process that does one kind of work on untrusted input, under limits of time and memory, and without network.

Work that loops is killed, work that grows reaches a memory limit, and a crash ends that process alone. The process is
started when it is first needed, and again after its end.

A process can also end for another reason than its work: the OOM killer takes such processes first, and on a host whose
CPUs are taken away a millisecond of work can last for seconds. A call whose process was killed, or stood still, is
therefore tried once more in a new process.

Memory is limited in one of two ways. On Linux a limit of the address space turns an allocation beyond it into a
MemoryError. macOS takes no such limit below the size that its shared libraries map, so there the parent polls the
process's resident memory while it waits and kills the process above the limit; the process can overshoot by as much as
it writes in WATCH_S, and gets no MemoryError to handle.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import msgspec
import psutil

from ..host.confinement import follow_parent, give_up_network, go_first_when_memory_runs_out
from ..host.fork_server import light_context, start_process

MemoryLimit = Literal["address_space", "resident"]
LIMITS: tuple[MemoryLimit, ...] = ("address_space", "resident")
HOST_LIMIT: MemoryLimit = "resident" if sys.platform == "darwin" else "address_space"
WATCH_S = 0.02  # between two polls of resident memory

START_TIMEOUT_S = 60.0  # of the process itself, on a busy host
_FIRST_SHARE = 0.1  # of a call's time limit; nearly all calls end within it, and CPU time is measured only after it
_LEAST_BUSY = 0.5  # of the remaining time: a process that computed for less of it was kept from computing

Handler = Callable[[bytes], str | bytes]  # does one call; raises one of `Work.refusals`


class Refusal(Exception):
    """The work cannot be done for this input; `str()` is fit to be shown to a user."""


class _Lost(Refusal):
    """The process was killed or stood still, which the work may not have caused."""


class Reply(msgspec.Struct):
    """Result of one call: its text or its data, or an error."""

    text: str = ""
    data: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a process: `prepare` runs in it once and returns the handler of each call. Both must be picklable."""

    name: str  # in messages, such as "the chat template"
    prepare: Callable[[], Handler]
    timeout_s: float  # of one call
    prepare_timeout_s: float
    memory_bytes: int
    limit: MemoryLimit = HOST_LIMIT  # how `memory_bytes` is enforced
    refusals: tuple[type[Exception], ...] = (Refusal,)  # errors by which `prepare` and the handler refuse an input


class LimitedProcess:
    """Runs `Work`. Blocking and safe to call from several threads; one call at a time."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process; None while there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start and prepare the process, unless that is done. Raises Refusal."""
        with self._lock:
            self._ensure()

    def call(self, call: bytes) -> str:
        """Do one call that returns text. Raises Refusal when the handler refuses, or takes too much time or memory."""
        return self.reply(call).text

    def reply(self, call: bytes) -> Reply:
        """Do one call. Raises Refusal when the handler refuses, or takes too much time or memory."""
        with self._lock:
            try:
                return self._do(call)
            except _Lost:
                return self._do(call)

    def _do(self, call: bytes) -> Reply:
        connection = self._ensure()
        try:
            connection.send_bytes(call)
        except OSError as error:
            self._kill()
            raise _Lost(f"{self._work.name} ended its process") from error
        return self._receive(connection, self._work.timeout_s, self._work.name)

    def close(self) -> None:
        """End the process. A later call starts it again."""
        with self._lock:
            self._kill()

    def _ensure(self) -> Connection[Any, Any]:
        if self._process is not None and self._connection is not None and self._process.is_alive():
            return self._connection
        self._kill()
        context = light_context()
        self._connection, theirs = context.Pipe()
        work = self._work
        name = work.name.removeprefix("the ").replace(" ", "-")
        self._process = context.Process(target=_serve, args=(theirs, work), name=name, daemon=True)
        start_process(self._process)
        theirs.close()
        self._receive(self._connection, START_TIMEOUT_S, f"the process of {work.name}")
        self._receive(self._connection, work.prepare_timeout_s, f"compiling {work.name}")
        return self._connection

    def _receive(self, connection: Connection[Any, Any], timeout_s: float, what: str) -> Reply:
        try:
            if not self._replies_within(timeout_s * _FIRST_SHARE, connection, what):
                self._watch(timeout_s, connection, what)
            reply = msgspec.msgpack.decode(connection.recv_bytes(), type=Reply)
        except (EOFError, OSError) as error:
            is_killed = self._process is not None and _exit_code(self._process) == -signal.SIGKILL
            self._kill()
            raise (_Lost if is_killed else Refusal)(f"{self._work.name} ended its process") from error
        if reply.error:
            raise Refusal(reply.error)
        return reply

    def _watch(self, timeout_s: float, connection: Connection[Any, Any], what: str) -> None:
        """Wait for the rest of `timeout_s`. At its end raise Refusal if the process was computing, else _Lost."""
        pid, rest_s = self.pid or 0, timeout_s * (1 - _FIRST_SHARE)
        computed_s = _computed_s(pid)
        if not self._replies_within(rest_s, connection, what):
            was_busy = _computed_s(pid) - computed_s >= rest_s * _LEAST_BUSY
            self._kill()
            raise (Refusal if was_busy else _Lost)(f"{what} took more than {timeout_s:g} s")

    def _replies_within(self, timeout_s: float, connection: Connection[Any, Any], what: str) -> bool:
        """Wait until the process replies or ends. Raises Refusal as soon as it has too much memory."""
        work, pid = self._work, self.pid
        if work.limit == "address_space":
            return connection.poll(timeout_s)
        if pid and _grows_beyond(pid, work.memory_bytes, connection, timeout_s):
            self._kill()
            raise Refusal(f"{what} took more than {work.memory_bytes >> 20} MiB of memory")
        return connection.poll(0)

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None


def _exit_code(process: BaseProcess) -> int | None:
    """Return the exit code of a process that has closed its connection; negative for a signal."""
    process.join(1.0)
    return process.exitcode


def _computed_s(pid: int) -> float:
    """Return the CPU seconds that the process has taken."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:  # it has ended, which its connection shows too
        return 0.0
    return float(times.user + times.system)


def _grows_beyond(pid: int, memory_bytes: int, connection: Connection[Any, Any], timeout_s: float) -> bool:
    """Wait until the process replies or is late; return True as soon as its resident memory exceeds the limit."""
    end = time.monotonic() + timeout_s
    while not connection.poll(max(0.0, min(WATCH_S, end - time.monotonic()))) and time.monotonic() < end:
        with contextlib.suppress(psutil.Error):  # it has ended, which its connection shows too
            if psutil.Process(pid).memory_info().rss > memory_bytes:
                return True
    return False


def limit_own_memory(limit: MemoryLimit, memory_bytes: int) -> None:
    """Limit the address space of this process to its present size and `memory_bytes` more.

    The present size counts because the fork server has mapped a compiler and a thread pool for every CPU. A lower limit
    that the server was started with (`ulimit -v`) stays.
    """
    if limit == "address_space":
        most = psutil.Process().memory_info().vms + memory_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _serve(connection: Connection[Any, Any], work: Work) -> None:
    """Main function of the process: prepare once, then handle calls until the other end closes."""
    follow_parent()  # also in the middle of a call that loops
    gc.enable()  # the fork server has disabled it
    limit_own_memory(work.limit, work.memory_bytes)
    go_first_when_memory_runs_out()
    give_up_network()
    with contextlib.suppress(EOFError, OSError):
        _send(connection, Reply())  # started; preparing may already take too much
        try:
            handler = work.prepare()
        except work.refusals as error:
            _send(connection, Reply(error=str(error)))
            return
        _send(connection, Reply())
        while True:
            _send(connection, _reply(work, handler, connection.recv_bytes()))


def _reply(work: Work, handler: Handler, call: bytes) -> Reply:
    try:
        done = handler(call)
        return Reply(text=done) if isinstance(done, str) else Reply(data=done)
    except work.refusals as error:
        return Reply(error=str(error))


def _send(connection: Connection[Any, Any], reply: Reply) -> None:
    connection.send_bytes(msgspec.msgpack.encode(reply))
