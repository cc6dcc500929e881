"""A process is held to its memory and time, and who is kept from working by others has a second one."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from neuronserve.server.host import fork_server
from neuronserve.server.text.limited_pool import LimitedPool
from neuronserve.server.text.limited_process import LIMITS, Handler, LimitedProcess, MemoryLimit, Refusal, Work

MIB = 1 << 20
LIMIT = 512 * MIB
linux = pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked")


def fill(call: bytes) -> str:
    """Write so many MiB, and never end where that is possible."""
    size = int(call) * MIB
    try:
        taken = [mmap.mmap(-1, MIB) for _ in range(0, size, MIB)]
        for each in taken:
            each.write(b"\1" * MIB)
    except (MemoryError, OSError) as error:
        raise Refusal("MemoryError") from error
    return str(len(taken))


def prepare_fill() -> Handler:
    return fill


@pytest.fixture(params=["spawned", pytest.param("forked", marks=linux)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How processes come to be meanwhile."""
    monkeypatch.setattr(fork_server, "_started", [])
    if request.param == "forked":
        fork_server.start_fork_server()
    return str(request.param)


@pytest.fixture(params=LIMITS)
def process(request: pytest.FixtureRequest, way: str) -> Iterator[LimitedProcess]:
    limit: MemoryLimit = request.param
    limited = LimitedProcess(Work("the work", prepare_fill, 60.0, 60.0, LIMIT, limit))
    yield limited
    limited.close()


@linux
def test_a_lower_limit_of_the_address_space_that_was_there_stays() -> None:
    """`ulimit -v` or a batch system's queue sets such a limit."""
    lower = f"""
import resource
from neuronserve.server.text.limited_process import limit_own_memory
resource.setrlimit(resource.RLIMIT_AS, ({8 << 30}, {8 << 30}))
limit_own_memory("address_space", {16 << 30})
assert resource.getrlimit(resource.RLIMIT_AS) == ({8 << 30}, {8 << 30})
limit_own_memory("address_space", {1 << 30})
assert resource.getrlimit(resource.RLIMIT_AS)[1] < {8 << 30}
"""
    subprocess.run([sys.executable, "-c", lower], check=True, timeout=60)


@pytest.mark.slow
def test_work_that_grows_too_far_is_refused_and_the_next_is_done(process: LimitedProcess) -> None:
    assert process.call(b"16") == "16"
    with pytest.raises(Refusal, match=r"^MemoryError$|^the work took more than 512 MiB of memory$"):
        process.call(b"4096")
    assert process.call(b"16") == "16"


def wait(call: bytes) -> str:
    """So many seconds of waiting, or of computing where they are marked with `!`."""
    end = time.monotonic() + float(call.strip(b"!"))
    while time.monotonic() < end:
        if b"!" not in call:
            time.sleep(0.01)
    return str(os.getpid())


def prepare_wait() -> Handler:
    return wait


@pytest.fixture
def waiting(way: str) -> Iterator[LimitedProcess]:
    limited = LimitedProcess(Work("the work", prepare_wait, 1.0, 60.0, LIMIT))
    limited.start()
    yield limited
    limited.close()


@pytest.mark.slow
def test_a_call_whose_process_is_killed_or_stopped_is_done_by_the_next_one(waiting: LimitedProcess) -> None:
    for number in (signal.SIGKILL, signal.SIGSTOP):
        first = waiting.pid or 0
        threading.Timer(0.2, os.kill, (first, number)).start()
        assert int(waiting.call(b"0.5")) != first


@pytest.mark.slow
def test_a_call_that_computes_for_too_long_is_refused_without_another_try(waiting: LimitedProcess) -> None:
    first = waiting.pid
    with pytest.raises(Refusal, match=r"^the work took more than 1 s$"):
        waiting.call(b"30!")
    assert waiting.pid is None  # nobody began it anew
    assert int(waiting.call(b"0")) != first


@pytest.mark.slow
def test_a_call_that_stands_still_twice_is_refused(waiting: LimitedProcess) -> None:
    with pytest.raises(Refusal, match=r"^the work took more than 1 s$"):
        waiting.call(b"30")


def test_a_process_that_ends_by_itself_is_the_work_s_fault(waiting: LimitedProcess) -> None:
    with pytest.raises(Refusal, match=r"^the work ended its process$"):
        waiting.call(b"not a number")
    assert waiting.pid is None


def test_the_fork_server_is_what_it_is_forked_from(process: LimitedProcess, way: str) -> None:
    process.start()
    assert (psutil.Process(process.pid).ppid() == os.getpid()) == (way == "spawned")


@pytest.mark.slow
def test_a_pool_does_a_second_call_beside_a_long_one_and_replaces_the_process_that_was_ended(way: str) -> None:
    pool = LimitedPool(Work("the work", prepare_wait, 2.0, 60.0, LIMIT), 2)
    refused: list[Refusal] = []

    def loop() -> None:
        try:
            pool.call(b"!60")
        except Refusal as error:
            refused.append(error)

    pool.start()
    first = pool.pid
    looping = threading.Thread(target=loop)
    looping.start()
    second = int(pool.call(b"0.01"))
    assert looping.is_alive()
    assert second != first
    looping.join()
    assert [str(error) for error in refused] == ["the work took more than 2 s"]
    assert pool.pid not in (None, first)
    pool.close()
