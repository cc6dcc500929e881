"""A helper process that compiles kernels into the cache.

An engine's process forks it, so that Numba's imports and declarations are not repeated. Where a fork is not safe (on
macOS, or beside other threads) it is a new interpreter. Either reads jobs from its end of a socket pair, one a line,
answers each with a line, and ends when the other end is shut.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from functools import partial

import numba

from ..host.confinement import end_with_parent
from ..host.stopped import cpu_seconds
from .checks import use_checks
from .isa.jit import KERNELS_OF, HostFunction, Kernel, declare, is_checked

IDLE_S = 20.0  # without an answer or processor time, after which a helper is given up
log = logging.getLogger("neuronserve.engine")

# The path is the parent's, so that the helper imports the same package. The CPU is set before the kernels' package,
# which would choose one.
_NEW = """
import json, socket, sys
end = socket.socket(fileno=0)
jobs = end.makefile()
settings = json.loads(jobs.readline())
sys.path[:] = settings["path"]
import numba
numba.config.CPU_NAME, numba.config.CPU_FEATURES, numba.config.CACHE_DIR = (
    settings["cpu"], settings["features"], settings["cache"]
)
from neuronserve.server.kernels.compile_helper import help_compile, prepare
prepare(settings["checks"])
help_compile(jobs, end)
"""


def prepare(checks: bool) -> None:
    """Prepare a new interpreter as a forked process would be: kernels are declared, in the same mode."""
    if checks:
        use_checks()
    importlib.import_module("neuronserve.server.kernels.dispatch")  # also declares the kernels that tables make


def help_compile(jobs: Iterable[str], end: socket.socket) -> None:
    """Run the helper: read a kernel's module and name from each line, and answer whether it is in the cache now."""
    gc.disable()  # saves a tenth of its time; the garbage is smaller than a kernel's memory
    for line in jobs:
        module, name = json.loads(line)
        try:
            importlib.import_module(module)
            KERNELS_OF[module, name].make()
        except Exception:  # the parent compiles it too, and raises the error there
            reply = b"failed\n"
        else:
            reply = b"done\n"
        try:
            end.sendall(reply)
        except OSError:  # the parent no longer waits
            return


class CompileHelper:
    """A helper process. It must be started before this process compiles in another thread."""

    def __init__(self) -> None:
        self._end, child_end = socket.socketpair()
        self._pid, self._wait = (_fork if _may_fork() else _begin)(self._end, child_end)
        child_end.close()
        self._end.settimeout(IDLE_S)

    def compile(self, kernel: Kernel | HostFunction) -> bool:
        """Have a kernel compiled into the cache. Returns False if the helper has ended or makes no progress."""
        used = cpu_seconds(self._pid)
        try:
            self._end.sendall(json.dumps([kernel.module, kernel.name]).encode() + b"\n")
            while True:
                try:
                    return bool(self._end.recv(64))
                except TimeoutError:
                    if used == (used := cpu_seconds(self._pid)):
                        break
        except OSError:
            return False
        log.warning("compile helper has made no progress for %g s: it is killed", IDLE_S)
        return False

    def kill(self) -> None:
        """Kill it in the middle of its work."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Let it end, and wait for that."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)  # also ends copies in processes that were forked later
        self._end.close()
        self._wait()


def _may_fork() -> bool:
    """Return whether this is the main thread of an engine's process: its other threads sleep while it loads."""
    is_main = threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and is_main and multiprocessing.parent_process() is not None


def _fork(parent_end: socket.socket, child_end: socket.socket) -> tuple[int, Callable[[], object]]:
    declare()
    parent = os.getpid()
    with warnings.catch_warnings():  # Python 3.12 warns of other threads, which `-W error` makes an error
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid, partial(os.waitpid, pid, 0)
    try:
        end_with_parent()
        if os.getppid() == parent:
            parent_end.close()
            help_compile(child_end.makefile(), child_end)
    finally:
        os._exit(0)


def _begin(parent_end: socket.socket, child_end: socket.socket) -> tuple[int, Callable[[], object]]:
    # It gets its own session: a terminal's interrupt goes to the server, which shuts the socket.
    process = subprocess.Popen([sys.executable, "-I", "-c", _NEW], stdin=child_end.fileno(), start_new_session=True)
    config = numba.config
    settings = {"path": sys.path, "cpu": config.CPU_NAME, "features": config.CPU_FEATURES}
    settings |= {"cache": config.CACHE_DIR, "checks": is_checked()}
    parent_end.sendall(json.dumps(settings).encode() + b"\n")
    return process.pid, process.wait
