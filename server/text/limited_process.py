"""A process that does one kind of work on untrusted input, under limits of time and memory, and without network.

Work that loops is killed, work that grows reaches a memory limit, and a crash ends that process alone. The process is
started when it is first needed, and again after its end.

What ends the work is not always the work: the OOM killer takes such processes first, and where CPUs are taken away the
work of a millisecond may last for seconds. So a call whose process was killed, or stood still, is done once more by the
next process.
"""

from __future__ import annotations

import contextlib
import gc
import queue
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec
import psutil

from neuronserve.server.host.confinement import follow_parent, give_up_network, go_first_when_memory_runs_out
from neuronserve.server.host.fork_server import light_context, start_process
from neuronserve.server.text.memory_limit import HOST_LIMIT, MemoryLimit, grows_beyond, limit_own_memory

START_TIMEOUT_S = 60.0  # of the process itself, on a busy host
_FIRST_SHARE = 0.1  # of a call's time, in which nearly all are done; who is not is watched from then on
_LEAST_BUSY = 0.5  # of the rest: a process that computed for less of it was kept from computing

Handler = Callable[[bytes], str]  # does one call; raises Refusal


class Refusal(Exception):
    """The work cannot be done for this input; `str()` is fit to be shown to a user."""


class _Lost(Refusal):
    """The process was killed or stood still, for which the work need not be to blame."""


class Reply(msgspec.Struct):
    """Result of one call: its text, or an error."""

    text: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a process: `prepare` runs in it once and returns the handler of each call. Both must be picklable."""

    name: str  # in messages, such as "the chat template"
    prepare: Callable[[], Handler]
    timeout_s: float  # of one call
    prepare_timeout_s: float
    memory_bytes: int
    limit: MemoryLimit = HOST_LIMIT  # how it is held to `memory_bytes`


class LimitedProcess:
    """Runs `Work`. Blocking and safe to call from several threads; one call at a time."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process, None while there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start and prepare, unless that is done. Raises Refusal."""
        with self._lock:
            self._ensure()

    def call(self, call: bytes) -> str:
        """Do one call. Raises Refusal when the handler refuses, or takes too much time or memory."""
        with self._lock:
            try:
                return self._do(call)
            except _Lost:
                return self._do(call)

    def _do(self, call: bytes) -> str:
        connection = self._ensure()
        try:
            connection.send_bytes(call)
        except OSError as error:
            self._kill()
            raise _Lost(f"{self._work.name} ended its process") from error
        return self._receive(connection, self._work.timeout_s, self._work.name)

    def close(self) -> None:
        """End the process. A later call would start it again."""
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

    def _receive(self, connection: Connection[Any, Any], timeout_s: float, what: str) -> str:
        try:
            if not self._speaks_within(timeout_s * _FIRST_SHARE, connection, what):
                self._watch(timeout_s, connection, what)
            reply = msgspec.msgpack.decode(connection.recv_bytes(), type=Reply)
        except (EOFError, OSError) as error:
            is_killed = self._process is not None and _exit_code(self._process) == -signal.SIGKILL
            self._kill()
            raise (_Lost if is_killed else Refusal)(f"{self._work.name} ended its process") from error
        if reply.error:
            raise Refusal(reply.error)
        return reply.text

    def _watch(self, timeout_s: float, connection: Connection[Any, Any], what: str) -> None:
        """Wait for the rest of `timeout_s`; raises Refusal at its end, and _Lost where there was nothing to see."""
        pid, rest_s = self.pid or 0, timeout_s * (1 - _FIRST_SHARE)
        computed_s = _computed_s(pid)
        if not self._speaks_within(rest_s, connection, what):
            was_busy = _computed_s(pid) - computed_s >= rest_s * _LEAST_BUSY
            self._kill()
            raise (Refusal if was_busy else _Lost)(f"{what} took more than {timeout_s:g} s")

    def _speaks_within(self, timeout_s: float, connection: Connection[Any, Any], what: str) -> bool:
        """Wait until the process says something or has ended. Raises Refusal as soon as it has too much memory."""
        work, pid = self._work, self.pid
        if work.limit == "resident" and pid and grows_beyond(pid, work.memory_bytes, connection, timeout_s):
            self._kill()
            raise Refusal(f"{what} took more than {work.memory_bytes >> 20} MiB of memory")
        return connection.poll(0 if work.limit == "resident" else timeout_s)

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None


class LimitedPool:
    """Several processes for the same work, so that a long call holds up no other. Started as they are needed."""

    def __init__(self, work: Work, size: int) -> None:
        self._all = [LimitedProcess(work) for _ in range(size)]
        self._free = queue.LifoQueue[LimitedProcess]()  # the one used last is used next, and the others need not start
        for process in reversed(self._all):
            self._free.put(process)

    @property
    def pid(self) -> int | None:
        """Id of the first process, None while there is none."""
        return self._all[0].pid

    def start(self) -> None:
        """Start one process and prepare it. Raises Refusal."""
        self._all[0].start()

    def call(self, call: bytes) -> str:
        """Do one call, in a free process. Raises Refusal.

        A process that the call has ended is started again before others get it.
        """
        process = self._free.get()
        try:
            return process.call(call)
        except Refusal:
            with contextlib.suppress(Refusal):
                process.start()
            raise
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End all processes. A later call would start one again."""
        for process in self._all:
            process.close()


def _exit_code(process: BaseProcess) -> int | None:
    """Of a process that has closed its connection, and so is about to end; a signal's is negative."""
    process.join(1.0)
    return process.exitcode


def _computed_s(pid: int) -> float:
    """Processor time that the process has taken."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:  # it has ended, which its connection says too
        return 0.0
    return float(times.user + times.system)


def _serve(connection: Connection[Any, Any], work: Work) -> None:
    """Main function of the process: prepare once, then handle calls until the other end closes."""
    follow_parent()  # also in the middle of a call that loops
    gc.enable()  # which the fork server is without
    limit_own_memory(work.limit, work.memory_bytes)
    go_first_when_memory_runs_out()
    give_up_network()
    with contextlib.suppress(EOFError, OSError):
        _send(connection, Reply())  # started; preparing may already be a bomb
        try:
            handler = work.prepare()
        except Refusal as error:
            _send(connection, Reply(error=str(error)))
            return
        _send(connection, Reply())
        while True:
            _send(connection, _reply(handler, connection.recv_bytes()))


def _reply(handler: Handler, call: bytes) -> Reply:
    try:
        return Reply(text=handler(call))
    except Refusal as error:
        return Reply(error=str(error))


def _send(connection: Connection[Any, Any], reply: Reply) -> None:
    connection.send_bytes(msgspec.msgpack.encode(reply))
