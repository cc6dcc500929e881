"""Workers that wake on one CPU separate: with the C library's functions, and with ones that record their calls."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import numpy as np
import pytest

from neuronserve.server.kernels import apart
from neuronserve.server.kernels.isa.jit import HostFunction, kernel
from neuronserve.server.kernels.program import Program
from neuronserve.server.kernels.workers import WorkerPool
from tests.api.serving import until
from tests.kernels.kernel_bench import address, aligned

STEPS = apart._STEPS
ANYWHERE = 200  # of CPUs: needs more than one word of a mask


@HostFunction
def settle(functions: int, places: int, worker: int, workers: int) -> None:
    apart.settle(functions, places, apart.PLACE_BYTES, worker, workers)


class Host:
    """A thread on a CPU of a host, which moves it to the first allowed CPU if it may not stay."""

    def __init__(self, cpu: int, allowed: Sequence[int], refuses: bool = False) -> None:
        self.cpu, self.allowed, self.masks, self._refuses = cpu, set(allowed), list[set[int]](), refuses
        integer, pointer = ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)
        mask_function = ctypes.CFUNCTYPE(integer, integer, ctypes.c_size_t, pointer)
        functions = (
            ctypes.CFUNCTYPE(integer)(lambda: self.cpu),
            mask_function(self._get),
            mask_function(self._set),
        )
        self._kept = functions
        self.addresses = aligned((3,), np.int64)
        self.addresses[:] = [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in functions]

    def _get(self, thread: int, size: int, mask: Sequence[int]) -> int:
        assert thread == 0
        for word in range(size // 8):
            mask[word] = sum(1 << cpu % 64 for cpu in self.allowed if cpu // 64 == word)  # type: ignore[index]
        return -1 if self._refuses else 0

    def _set(self, thread: int, size: int, mask: Sequence[int]) -> int:
        assert thread == 0
        self.masks.append({word * 64 + bit for word in range(size // 8) for bit in range(64) if mask[word] >> bit & 1})
        if self.cpu not in self.masks[-1]:
            self.cpu = min(self.masks[-1])
        return 0


def where(host: Host, worker: int, others: Sequence[int], times: int = 1) -> list[int]:
    """Return the recorded CPUs of workers after one has settled; `others` are the CPUs of the others, in order."""
    places = aligned((len(others) + 1, apart.PLACE_BYTES // 8), np.int64)
    places[:, 0] = np.insert(others, worker, ANYWHERE)
    for _ in range(times):
        settle(address(host.addresses), address(places), worker, len(places))
    found: list[int] = places[:, 0].tolist()
    assert found[worker] == host.cpu
    return found


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_worker_with_a_cpu_of_its_own_stays_there(worker: int) -> None:
    host = Host(1, range(4))
    where(host, worker, [0, 3])
    assert (host.cpu, host.masks) == (1, [])


def test_one_that_wakes_where_another_is_goes_where_none_is() -> None:
    host = Host(0, range(4))
    assert where(host, 1, [0, 1]) == [0, 2, 1]
    assert host.masks == [{2, 3}]


def test_after_a_while_it_may_run_where_it_might_before() -> None:
    host = Host(0, range(4))
    where(host, 1, [0, 1], STEPS)
    assert host.masks == [{2, 3}]
    host = Host(0, range(4))
    where(host, 1, [0, 1], STEPS + 1)
    assert host.masks == [{2, 3}, {0, 1, 2, 3}]


def test_one_that_meets_another_again_meanwhile_leaves_it_too() -> None:
    """Worker 0 stays where the system has put it."""
    host, places = Host(0, range(4)), aligned((2, apart.PLACE_BYTES // 8), np.int64)
    for cpu in (0, 1):
        host.cpu = places[0, 0] = cpu
        settle(address(host.addresses), address(places), 1, 2)
    assert (host.cpu, host.masks) == (0, [{1, 2, 3}, {0, 2, 3}])
    for _ in range(STEPS):
        settle(address(host.addresses), address(places), 1, 2)
    assert host.masks[2:] == [{0, 1, 2, 3}]


def test_cpus_beyond_the_first_word_of_a_mask_are_as_good() -> None:
    host = Host(63, [63, 64, 127, 130, 1023])
    assert where(host, 1, [63, 64, 127]) == [63, 130, 64, 127]
    host = Host(64, [0, 64])
    assert where(host, 0, [64]) == [0, 64]


@pytest.mark.parametrize("allowed", [[0], [0, 1]])
def test_where_there_are_not_more_cpus_than_workers_nobody_is_moved(allowed: list[int]) -> None:
    host = Host(0, allowed)
    where(host, 2, [0, 1])
    assert (host.cpu, host.masks) == (0, [])


def test_a_host_that_does_not_say_where_its_threads_may_run_is_left_alone() -> None:
    host = Host(0, range(4), refuses=True)
    where(host, 1, [0])
    assert (host.cpu, host.masks) == (0, [])


def test_on_a_system_that_does_not_say_where_a_thread_is_nobody_is_moved() -> None:
    host = Host(-1, range(4))
    where(host, 1, [-1])
    assert host.masks == []


def test_a_system_without_these_functions_moves_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    places = aligned((2, apart.PLACE_BYTES // 8), np.int64)
    places[:, 0] = ANYWHERE
    functions = np.array(apart.function_addresses(), np.int64)
    settle(address(functions), address(places), 1, 2)
    assert places[:, 0].tolist() == [ANYWHERE] * 2


@kernel
def nothing(operands, cores, step, worker, workers) -> None:
    """Take part."""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads")
def test_threads_may_run_where_they_might_before() -> None:
    record = aligned((1,), np.int64)
    program, before = Program("nothing", record), set(os.listdir("/proc/self/task"))
    program.add("nothing", nothing, [(address(record),)])
    pool = WorkerPool(2)
    other = int(min(set(os.listdir("/proc/self/task")) - before))
    allowed = os.sched_getaffinity(0)
    for cpu in allowed:
        for thread in (0, other):  # both were on this CPU last
            os.sched_setaffinity(thread, {cpu})
            os.sched_setaffinity(thread, allowed)
        pool.run(program, 0)
        assert os.sched_getaffinity(0) == allowed
        until(lambda: pool.run(program, 0) or os.sched_getaffinity(other) == allowed)
    pool.close()
