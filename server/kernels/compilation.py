"""Compiles the kernels that a start lacks, in this process and in helpers beside it; the rest is loaded.

Numba compiles under one lock, so one process keeps one CPU busy. Helpers (`compile_helper.py`) compile into the cache.
This process takes jobs too, and at last loads what the helpers have made, and compiles what they have failed to make.
"""

from __future__ import annotations

import contextlib
import dis
import fcntl
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numba

from neuronserve.server.kernels.compile_helper import CompileHelper
from neuronserve.server.kernels.isa.jit import HostFunction, Inlined, Kernel

Compiled = Kernel | HostFunction
Report = Callable[[str], None]

MAX_PROCESSES = 4  # each takes about 220 MB, and the longest kernel is a third of all the work
HOLDER = "compiling"  # file in the cache's folder: what the process does that holds the lock
POLL_S, REPORT_S = 0.1, 5.0


def compile_kernels(kernels: Iterable[Compiled], report: Report, num_processes: int = 1) -> float:
    """Load each kernel, after compiling those that the cache lacks; returns the seconds it took.

    A progress line for each that is compiled, none for those that are loaded.
    """
    begin = time.perf_counter()
    wanted = list({kernel.name: kernel for kernel in kernels}.values())
    if not all(kernel.is_at_hand for kernel in wanted):
        with _turn_in_cache(report) as holder:  # another process may compile just these
            missing = [kernel for kernel in wanted if not kernel.is_at_hand]
            _Compilation(missing, lambda line: _say(line, report, holder)).run(num_processes)
    for kernel in wanted:
        kernel.make()
    return time.perf_counter() - begin


class _Compilation:
    """The kernels that are missing, and who takes which: the largest first, each as soon as it has nothing to do."""

    def __init__(self, missing: Collection[Compiled], report: Report) -> None:
        self._report, self._count = report, len(missing)
        self._jobs = deque(sorted(missing, key=lambda kernel: -_expected_work(kernel.function)))
        self._lock = threading.Lock()

    def run(self, num_processes: int) -> None:
        """Compile all, at most so many at once; returns when nobody compiles any more."""
        helpers = [_helper() for _ in range(min(num_processes, self._count, MAX_PROCESSES) - 1)]
        threads = [threading.Thread(target=self._help, args=(each,), name="compile") for each in helpers if each]
        for thread in threads:
            thread.start()
        try:
            while (kernel := self._take()) is not None:
                kernel.make()
        finally:
            self._jobs.clear()
            for thread in threads:
                thread.join()

    def _take(self) -> Compiled | None:
        with self._lock:
            if not self._jobs:
                return None
            kernel = self._jobs.popleft()
            self._report(f"compiling {kernel.name} ({self._count - len(self._jobs)}/{self._count})")
            return kernel

    def _help(self, helper: CompileHelper) -> None:
        """Have a helper compile until nothing is left. One that ends early leaves its kernel to this process."""
        with contextlib.closing(helper):
            while (kernel := self._take()) is not None:
                if not helper.compile(kernel):
                    helper.kill()
                    return


def _helper() -> CompileHelper | None:
    """Another process to compile in; None where the host has no room for one."""
    try:
        return CompileHelper()
    except OSError:
        return None


def _expected_work(function: Callable[..., Any]) -> int:
    """Bytecode of a function and of all that is inlined in it, as often as it is: what LLVM's time goes by."""
    return _inlined_bytes(function, {})


def _inlined_bytes(function: Callable[..., Any], known: dict[Any, int]) -> int:
    """`known` holds the bytes of functions that were counted before."""
    if function not in known:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        names = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
        called = (names.get(each.argval) for each in dis.get_instructions(function) if each.opname.startswith("LOAD_"))
        inner = (each.function for each in called if isinstance(each, Inlined))
        known[function] = len(function.__code__.co_code) + sum(_inlined_bytes(each, known) for each in inner)
    return known[function]


@contextlib.contextmanager
def _turn_in_cache(report: Report) -> Iterator[Path | None]:
    """One process at a time: those that start together wait for the first, and find in the cache what it compiled.

    Gives the file that tells others what this process does meanwhile; None where there is no cache, or no lock.
    """
    if not numba.config.CACHE_DIR:
        yield None
        return
    path = Path(numba.config.CACHE_DIR)
    folder = os.open(path, os.O_RDONLY)
    try:
        has_lock = _wait_for_lock(folder, path / HOLDER, report)
        yield path / HOLDER if has_lock else None
        if has_lock:
            (path / HOLDER).unlink(missing_ok=True)
    finally:
        os.close(folder)


def _wait_for_lock(folder: int, holder: Path, report: Report) -> bool:
    """Take the lock, with a line about who has it at first and every few seconds; False where the files have none."""
    begin, said = time.monotonic(), -REPORT_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - begin
            if waited >= said + REPORT_S:
                said = waited
                report(f"waiting for {_holder(holder)} to fill {holder.parent} ({waited:.0f} s)")
            time.sleep(POLL_S)
        except OSError:  # a file system without locks: each compiles for itself
            return False
        else:
            return True


def _holder(file: Path) -> str:
    """Who holds the lock, and what it does: what it has written, if it has."""
    with contextlib.suppress(OSError):
        if text := file.read_text().strip():
            return text
    return "another process"


def _say(line: str, report: Report, holder: Path | None) -> None:
    """Report what is compiled, to this process's log and to those that wait."""
    report(line)
    if holder is not None:
        with contextlib.suppress(OSError):
            holder.write_text(f"process {os.getpid()} of {platform.node()} ({line})")
