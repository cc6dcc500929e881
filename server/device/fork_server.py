"""Where processes come from: one that has imported what engines run, and is forked for each of them.

`serve` starts it before all else, so that the first engine's imports take the time in which settings are read. Engines
beside the first, and those that follow one that died, find everything imported; so do the processes that templates and
grammars are confined to. macOS has libraries that do not survive a fork: there each is a new process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from multiprocessing.context import ForkServerContext, SpawnContext

PRELOAD = "neuronserve.preload"
MAX_NAME_BYTES = 107  # of a socket in the file system (Linux's sun_path and its end)
SOCKET_NAME_BYTES = len("/pymp-12345678/listener-12345678")  # of the fork server's below the temporary directory

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
        forkserver.ensure_running()


def _shorten_temporary_directory() -> None:
    """Have temporary files in /tmp where no socket can be in TMPDIR, for the length of its name."""
    if len(os.fsencode(tempfile.gettempdir())) > MAX_NAME_BYTES - SOCKET_NAME_BYTES:
        tempfile.tempdir = "/tmp"
