"""Compiles the kernels that the cache lacks, in this process and in helper processes, and loads the rest.

Numba compiles under one lock, so one process keeps one CPU busy. Helpers (`compile_helper.py`) compile into the cache.
This process compiles too; at the end it loads what the helpers have made and compiles what they failed to make.
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

from .compile_helper import CompileHelper
from .isa.jit import HostFunction, Inlined, Kernel

Compiled = Kernel | HostFunction
Report = Callable[[str], None]

MAX_PROCESSES = 4  # each takes about 220 MB, and the longest kernel is a third of all work
HOLDER = "compiling"  # file in the cache's folder: progress of the process that holds the lock
POLL_S, REPORT_S = 0.1, 5.0


def compile_kernels(kernels: Iterable[Compiled], report: Report, num_processes: int = 1) -> float:
    """Load each kernel after compiling those that the cache lacks. Returns the seconds it took.

    Reports a progress line for each kernel that is compiled, none for those that are loaded.
    """
    begin = time.perf_counter()
    wanted = list({kernel.name: kernel for kernel in kernels}.values())
    if not all(kernel.is_at_hand for kernel in wanted):
        with _turn_in_cache(report) as holder:  # another process may be compiling these kernels
            missing = [kernel for kernel in wanted if not kernel.is_at_hand]
            _Compilation(missing, lambda line: _say(line, report, holder)).run(num_processes)
    for kernel in wanted:
        kernel.make()
    return time.perf_counter() - begin


class _Compilation:
    """The missing kernels, largest first; each process takes the next when it is free."""

    def __init__(self, missing: Collection[Compiled], report: Report) -> None:
        self._report, self._count = report, len(missing)
        self._jobs = deque(sorted(missing, key=lambda kernel: -_expected_work(kernel.function)))
        self._lock = threading.Lock()

    def run(self, num_processes: int) -> None:
        """Compile all kernels in up to `num_processes` processes; returns when all have finished."""
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
        """Have a helper compile until no job is left. If it ends early, this process compiles its kernel."""
        with contextlib.closing(helper):
            while (kernel := self._take()) is not None:
                if not helper.compile(kernel):
                    helper.kill()
                    return


def _helper() -> CompileHelper | None:
    """Return a helper process; None if the host has no room for one."""
    try:
        return CompileHelper()
    except OSError:
        return None


def _expected_work(function: Callable[..., Any]) -> int:
    """Return the bytecode size of a function and of everything inlined in it: LLVM's time grows with it."""
    return _inlined_bytes(function, {})


def _inlined_bytes(function: Callable[..., Any], known: dict[Any, int]) -> int:
    """Return the bytes of a function; `known` holds those of functions counted before."""
    if function not in known:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        names = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
        called = (names.get(each.argval) for each in dis.get_instructions(function) if each.opname.startswith("LOAD_"))
        inner = (each.function for each in called if isinstance(each, Inlined))
        known[function] = len(function.__code__.co_code) + sum(_inlined_bytes(each, known) for each in inner)
    return known[function]


@contextlib.contextmanager
def _turn_in_cache(report: Report) -> Iterator[Path | None]:
    """Let one process at a time compile: others that start meanwhile wait and find its kernels in the cache.

    Yields the file that shows this process's progress to the others; None without a cache or a lock.
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
    """Take the lock, and report its holder at once and every few seconds; False if the file system has no locks."""
    begin, reported = time.monotonic(), -REPORT_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - begin
            if waited >= reported + REPORT_S:
                reported = waited
                report(f"waiting for {_holder(holder)} to fill {holder.parent} ({waited:.0f} s)")
            time.sleep(POLL_S)
        except OSError:  # a file system without locks: each process compiles for itself
            return False
        else:
            return True


def _holder(file: Path) -> str:
    """Return the process that holds the lock and its progress, as far as it has written them."""
    with contextlib.suppress(OSError):
        if text := file.read_text().strip():
            return text
    return "another process"


def _say(line: str, report: Report, holder: Path | None) -> None:
    """Report what is compiled, to this process's log and to waiting processes."""
    report(line)
    if holder is not None:
        with contextlib.suppress(OSError):
            holder.write_text(f"process {os.getpid()} of {platform.node()} ({line})")
