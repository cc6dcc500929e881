"""Where processes come from: one that has imported what engines run, and is forked for each of them.

`serve` starts it before all else, so that the first engine's imports take the time in which settings are read. Engines
beside the first, and those that follow one that died, find everything imported; so do the processes that templates and
grammars are confined to. macOS has libraries that do not survive a fork: there each is a new process.
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
FORK_SERVER_END_S = 10.0  # in which a fork server that was killed has ended, on a busy host

_started: list[ForkServerContext] = []  # of this process, at most one


def engine_context() -> ForkServerContext | SpawnContext:
    """What makes processes of engines. The first may wait until the fork server has imported everything."""
    if sys.platform == "darwin":
        return multiprocessing.get_context("spawn")
    if not _started:
        _shorten_temporary_directory()
        _started.append(multiprocessing.get_context("forkserver"))
        _started[0].set_forkserver_preload([PRELOAD])
    return _started[0]


def light_context() -> ForkServerContext | SpawnContext:
    """What makes processes that need little: the fork server if this process has it, as it is not worth its imports."""
    return _started[0] if _started else multiprocessing.get_context("spawn")


def start_fork_server() -> None:
    """Begin with the imports; harmless where they are done, or where nothing is forked."""
    if sys.platform != "darwin":
        from multiprocessing import forkserver

        engine_context()
        with no_interrupts_for_children():
            forkserver.ensure_running()


def start_process(process: BaseProcess) -> None:
    """Start a process that gets no interrupts from a terminal. Raises OSError or EOFError when that cannot be done.

    A fork server that was killed refuses connections for a moment before it can be seen that it has ended, and is
    started again afterwards.
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
    """Keep the interrupt of a terminal from the processes that this thread starts inside, from their first moment.

    The terminal sends it to all processes. The one that has started the others ends them.
    """
    resource_tracker.ensure_running()  # which otherwise unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_children() -> None:
    """Kill what this process has started with multiprocessing, which would send a SIGTERM that is ignored, and wait."""
    for child in multiprocessing.active_children():
        child.kill()
    if _started:
        from multiprocessing import forkserver

        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None:  # it would go on with its imports
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


atexit.register(_kill_children)  # runs before the exit function of multiprocessing.util, which was registered earlier


def _shorten_temporary_directory() -> None:
    """Have temporary files in /tmp where no socket can be in TMPDIR, for the length of its name."""
    if len(os.fsencode(tempfile.gettempdir())) > MAX_NAME_BYTES - SOCKET_NAME_BYTES:
        tempfile.tempdir = "/tmp"
