"""A process beside this one that compiles kernels into the cache.

An engine's process forks it: what Numba has imported and declared by then is not made again. Elsewhere, as on macOS,
whose libraries do not survive a fork, or where threads of others run, it is a new interpreter. Either reads jobs
from its end of a socket pair, a line each, answers each with a line, and ends when the other end is shut.
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

from neuronserve.server.host.confinement import end_with_parent
from neuronserve.server.host.stopped import cpu_seconds
from neuronserve.server.kernels.checks import use_checks
from neuronserve.server.kernels.isa.jit import KERNELS_OF, HostFunction, Kernel, declare, is_checked

IDLE_S = 20.0  # without an answer or any processor time, after which a helper is given up
log = logging.getLogger("neuronserve.engine")

# The path is the parent's, so that a helper has the same package, wherever it is started. The CPU comes before the
# kernels' package, which settles it.
_NEW = """
import json, socket, sys
end = socket.socket(fileno=0)
jobs = end.makefile()
told = json.loads(jobs.readline())
sys.path[:] = told["path"]
import numba
numba.config.CPU_NAME, numba.config.CPU_FEATURES, numba.config.CACHE_DIR = told["cpu"], told["features"], told["cache"]
from neuronserve.server.kernels.compile_helper import help_compile, prepare
prepare(told["checks"])
help_compile(jobs, end)
"""


def prepare(checks: bool) -> None:
    """Make a new interpreter what a forked process is: kernels are known, and compiled in the same mode."""
    if checks:
        use_checks()
    importlib.import_module(
        "neuronserve.server.kernels.dispatch"
    )  # makes those of tables, whose modules are not their makers'


def help_compile(jobs: Iterable[str], end: socket.socket) -> None:
    """The life of a helper: a kernel's module and name a line in, whether it is in the cache now a line out."""
    gc.disable()  # a tenth of its time; what it would free is less than a kernel takes
    for line in jobs:
        module, name = json.loads(line)
        try:
            importlib.import_module(module)
            KERNELS_OF[module, name].make()
        except Exception:  # whoever asked compiles it too, and raises it where it is wanted
            reply = b"failed\n"
        else:
            reply = b"done\n"
        try:
            end.sendall(reply)
        except OSError:  # nobody waits for it any more
            return


class CompileHelper:
    """The process, from its start to its end; to be made before this process compiles in another thread."""

    def __init__(self) -> None:
        self._end, theirs = socket.socketpair()
        self._pid, self._wait = (_fork if _may_fork() else _begin)(self._end, theirs)
        theirs.close()
        self._end.settimeout(IDLE_S)

    def compile(self, kernel: Kernel | HostFunction) -> bool:
        """Have a kernel compiled into the cache; False when the helper has ended, or does nothing any more."""
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
        log.warning("a process that compiles has done nothing for %g s: it is given up", IDLE_S)
        return False

    def kill(self) -> None:
        """End it in the middle of what it does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """Have it end, and wait for that."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)  # also where processes that were forked later have it open
        self._end.close()
        self._wait()


def _may_fork() -> bool:
    """Whether this is an engine's process, and its main thread: others of its threads sleep while it loads."""
    is_main = threading.current_thread() is threading.main_thread()
    return sys.platform == "linux" and is_main and multiprocessing.parent_process() is not None


def _fork(own: socket.socket, theirs: socket.socket) -> tuple[int, Callable[[], object]]:
    declare()
    parent = os.getpid()
    with warnings.catch_warnings():  # of the other threads, from Python 3.12 on: an error with `-W error`
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid, partial(os.waitpid, pid, 0)
    try:
        end_with_parent()
        if os.getppid() == parent:
            own.close()
            help_compile(theirs.makefile(), theirs)
    finally:
        os._exit(0)


def _begin(own: socket.socket, theirs: socket.socket) -> tuple[int, Callable[[], object]]:
    # A session of its own: a terminal's interrupt is for the server, which shuts the socket.
    process = subprocess.Popen([sys.executable, "-I", "-c", _NEW], stdin=theirs.fileno(), start_new_session=True)
    config = numba.config
    told = {"path": sys.path, "cpu": config.CPU_NAME, "features": config.CPU_FEATURES}
    told |= {"cache": config.CACHE_DIR, "checks": is_checked()}
    own.sendall(json.dumps(told).encode() + b"\n")
    return process.pid, process.wait
