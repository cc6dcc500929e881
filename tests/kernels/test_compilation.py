"""Kernels that a start compiles or loads, and its messages."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import pytest

from neuronserve.server.kernels.compilation import compile_kernels
from neuronserve.server.kernels.isa.cache import use_cache
from neuronserve.server.kernels.isa.jit import kernel
from tests.depth import representative

ROOT = Path(__file__).resolve().parent.parent.parent
START = """
import sys
from neuronserve.server.kernels import executor
from neuronserve.server.kernels.activate import activate_rows
from neuronserve.server.kernels.compilation import compile_kernels
from neuronserve.server.kernels.isa.cache import use_cache
use_cache(sys.argv[1])
some = (activate_rows, executor.init_control, executor.stop_workers)[: int(sys.argv[2])]
compile_kernels(some, print, int(sys.argv[3]))
assert activate_rows.address
print("compiled here", sum(not each.is_loaded for each in some))
"""


# An engine's process, which forks its helper; the second argument is the helper's behaviour.
ENGINE = """
import multiprocessing, os, signal, sys, time, warnings
from neuronserve.server.kernels import compile_helper
compile_helper.IDLE_S = 1.0
does = {
    "dies": lambda jobs, end: os._exit(1),
    "hangs": lambda jobs, end: time.sleep(600),
    "dies at work": lambda jobs, end: (next(iter(jobs)), os._exit(1)),
    "stops at work": lambda jobs, end: (next(iter(jobs)), os.kill(os.getpid(), signal.SIGSTOP)),
}
fork = os.fork
def fork_as_newer_pythons():
    pid = fork()
    if pid:
        warnings.warn("This process is multi-threaded, use of fork() may lead to deadlocks", DeprecationWarning)
    return pid
compile_helper.help_compile = does.get(sys.argv[2], compile_helper.help_compile)
def compile_some():
    from neuronserve.server.kernels import executor
    from neuronserve.server.kernels.compilation import compile_kernels
    from neuronserve.server.kernels.isa.cache import use_cache
    use_cache(sys.argv[1])
    os.fork = fork_as_newer_pythons if sys.argv[2] == "warns" else fork
    some = executor.init_control, executor.stop_workers
    compile_kernels(some, print, 2)
    print("compiled here", sum(not each.is_loaded for each in some), flush=True)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("no child is left", flush=True)
engine = multiprocessing.get_context("fork").Process(target=compile_some)
engine.start()
engine.join()
"""


@kernel
def nothing(operands, cores, step, worker, workers) -> None:
    """A kernel that does nothing."""


@pytest.fixture(autouse=True)
def _keep_cache_dir() -> object:
    before = numba.config.CACHE_DIR
    yield
    numba.config.CACHE_DIR = before


def start(cache: Path, number: int, processes: int) -> list[str]:
    """Return the output of a process that needs the first `number` of three kernels."""
    command = [sys.executable, "-c", START, str(cache), str(number), str(processes)]
    return subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout.splitlines()


def test_a_start_compiles_what_the_cache_lacks_and_is_silent_of_the_rest(tmp_path: Path) -> None:
    assert start(tmp_path, 1, 1) == ["compiling activate_rows (1/1)", "compiled here 1"]
    assert start(tmp_path, 1, 1) == ["compiled here 0"]
    *lines, here = start(tmp_path, 3, 2)
    assert sorted(line.split()[1] for line in lines) == ["init_control", "stop_workers"]
    assert here == "compiled here 1"  # a helper has compiled the other one, which is found in the cache
    assert len(list(tmp_path.rglob("*.nbi"))) == 3
    assert start(tmp_path, 3, 2) == ["compiled here 0"]


def test_processes_that_start_together_wait_for_the_first_and_say_for_whom(tmp_path: Path) -> None:
    path = use_cache(str(tmp_path / "cache"))
    folder = os.open(path, os.O_RDONLY)
    reported: list[str] = []
    waits = threading.Event()

    def report(line: str) -> None:
        reported.append(line)
        waits.set()

    second = threading.Thread(target=compile_kernels, args=([nothing], report))
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # as the first process does
        (path / "compiling").write_text("process 1 of elsewhere (compiling attention (1/8))")
        second.start()
        assert waits.wait(60)
        (waited,) = reported
        assert waited == f"waiting for process 1 of elsewhere (compiling attention (1/8)) to fill {path} (0 s)"
    finally:
        os.close(folder)
    second.join(60)
    assert reported[1:] == ["compiling nothing (1/1)"]
    assert not (path / "compiling").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="engines are forked on Linux alone")
@pytest.mark.parametrize(
    ("does", "here"),
    representative(
        [("works", 1), ("warns", 1), ("dies", 2), ("hangs", 2), ("dies at work", 2), ("stops at work", 2)],
        *(("works", 1), ("stops at work", 2)),
    ),
)
def test_an_engine_forks_its_helper_and_compiles_itself_what_that_does_not(
    tmp_path: Path, does: str, here: int
) -> None:
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", ENGINE, str(tmp_path), does]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True, timeout=300)
    *_, compiled, left = done.stdout.splitlines()
    assert (compiled, left) == (f"compiled here {here}", "no child is left")
    assert ("it is killed" in done.stderr) == (does in {"hangs", "stops at work"})
    assert len(list(tmp_path.rglob("*.nbi"))) == 2
