"""The fork server: a process that has imported the engine's code and is forked for each engine.

`serve` starts it first, so that its imports run while settings are read. Later engines, restarted engines and the
processes that confine templates and grammars find everything imported. Some macOS libraries do not survive a fork, so
there each process is spawned.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess

PRELOAD = "neuronserve.server.engine.preload"
MAX_NAME_BYTES = 107  # of a socket in the file system (Linux's sun_path and its end)
SOCKET_NAME_BYTES = len("/pymp-12345678/listener-12345678")  # of the fork server's below the temporary directory
FORK_SERVER_END_S = 10.0  # most time for a killed fork server to end, on a busy host

_started: list[ForkServerContext] = []  # of this process, at most one


def engine_context() -> ForkServerContext | SpawnContext:
    """Return the context of engine processes. The first process may wait for the fork server's imports."""
    if sys.platform == "darwin":
        return multiprocessing.get_context("spawn")
    if not _started:
        _shorten_temporary_directory()
        _started.append(multiprocessing.get_context("forkserver"))
        _started[0].set_forkserver_preload([PRELOAD])
    return _started[0]


def light_context() -> ForkServerContext | SpawnContext:
    """Return the context of small processes: the fork server if this process has one, else spawning."""
    return _started[0] if _started else multiprocessing.get_context("spawn")


def start_fork_server() -> None:
    """Begin with the imports. Does nothing when they are done, or when nothing is forked."""
    if sys.platform != "darwin":
        from multiprocessing import forkserver

        engine_context()
        with no_interrupts_for_children():
            forkserver.ensure_running()


def start_process(process: BaseProcess) -> None:
    """Start a process that gets no interrupts from a terminal. Raises OSError or EOFError on failure.

    A killed fork server refuses connections for a moment before its end can be seen. It is started again then.
    """
    deadline = time.monotonic() + FORK_SERVER_END_S
    with no_interrupts_for_children():
        while True:
            try:
                process.start()
                return
            except (ConnectionError, EOFError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


@contextlib.contextmanager
def no_interrupts_for_children() -> Iterator[None]:
    """Block the terminal's interrupt in the processes that this thread starts inside, from their first moment on.

    The terminal sends the interrupt to all processes. The process that started the others ends them.
    """
    resource_tracker.ensure_running()  # otherwise it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_children() -> None:
    """Kill the children of this process: multiprocessing would send a SIGTERM, which they ignore, and wait."""
    for child in multiprocessing.active_children():
        child.kill()
    if _started:
        from multiprocessing import forkserver

        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None:  # otherwise it would go on with its imports
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


atexit.register(_kill_children)  # runs before the exit function of multiprocessing.util, which was registered earlier


def _shorten_temporary_directory() -> None:
    """Move temporary files to /tmp when the name of TMPDIR is too long for a socket in it."""
    if len(os.fsencode(tempfile.gettempdir())) > MAX_NAME_BYTES - SOCKET_NAME_BYTES:
        tempfile.tempdir = "/tmp"
