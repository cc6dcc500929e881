"""Workers synchronize after each instruction, spinning or sleeping, whatever else runs on their CPUs."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from neuronserve.server.host.address_map import ADDRESSES
from neuronserve.server.host.cpu_watch import CpuWatch
from neuronserve.server.kernels import executor
from neuronserve.server.kernels.isa.jit import kernel, share_begin
from neuronserve.server.kernels.isa.memory import load_i64, store_i64
from neuronserve.server.kernels.program import Program
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import representative

INSTRUCTIONS, STEPS = 40, 30


@kernel
def add_neighbour(operands, cores, step, worker, workers) -> None:
    """Add the neighbour's previous value to the worker's; source and target alternate."""
    source, target = load_i64(operands), load_i64(operands + 8)
    neighbour = (worker + 1) % workers
    store_i64(target + worker * 8, (load_i64(source + worker * 8) + load_i64(source + neighbour * 8)) % 1_000_003)


@kernel
def add_one(operands, cores, step, worker, workers) -> None:
    """Count the worker's instructions."""
    value = load_i64(operands) + worker * 8
    store_i64(value, load_i64(value) + 1)


def test_programs_may_run_on_some_of_the_workers_only() -> None:
    value = np.zeros(8, np.int64)
    ADDRESSES.register("value", value)
    program = Program("count", value)
    for _ in range(INSTRUCTIONS):
        program.add("add", add_one, [(value.ctypes.data,)])
    pool = WorkerPool(4)
    for workers in [*range(1, 5), *range(4, 0, -1)] * 8:
        value[:] = 0
        with pool.only(workers):
            pool.run(program, 0)
        assert value.tolist() == [INSTRUCTIONS] * workers + [0] * (8 - workers)
    value[:] = 0
    pool.run(program, 0)
    assert value.tolist() == [INSTRUCTIONS] * 4 + [0] * 4
    pool.close()


class Cpus(CpuWatch):
    """CPUs that a test takes away at once."""

    def __init__(self, count: int) -> None:
        self.left = count
        super().__init__(count, count=lambda: self.left)

    def look(self, now_s: float) -> bool:
        del now_s
        return super().look(math.inf)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be moved")
def test_programs_run_on_as_many_workers_as_there_are_cpus() -> None:
    value, cpus = np.zeros(8, np.int64), Cpus(4)
    ADDRESSES.register("value", value)
    program = Program("count", value)
    program.add("add", add_one, [(value.ctypes.data,)])
    pool, before = WorkerPool(4, watch=cpus), os.sched_getaffinity(0)
    try:
        for left, wanted, workers in [(4, 4, 4), (2, 4, 2), (2, 1, 1), (1, 3, 1), (3, 4, 3), (4, 4, 4), (1, 4, 1)]:
            os.sched_setaffinity(0, {min(before)} if left < 4 else before)
            value[:], cpus.left = 0, left
            with pool.only(wanted):
                pool.run(program, 0)
            assert value.tolist() == [1] * workers + [0] * (8 - workers)
            for thread in pool._threads:  # it may use no more than the caller may
                assert os.sched_getaffinity(thread.native_id or 0) <= os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, before)
        pool.close()  # ends those too that did not run the last program
    assert not any(thread.is_alive() for thread in pool._threads)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("contended_steps", [0, STEPS], ids=["spinning", "sleeping"])
def test_no_worker_begins_an_instruction_before_all_have_ended_the_last(num_threads: int, contended_steps: int) -> None:
    """More workers than CPUs take turns on them, so at each barrier some are far behind."""
    halves = np.zeros((2, num_threads), np.int64)
    halves[0] = np.arange(1, num_threads + 1)
    want = halves[0].copy()
    ADDRESSES.register("halves", halves)
    addresses = [halves[0].ctypes.data, halves[1].ctypes.data]
    program = Program("neighbours", halves)
    for i in range(INSTRUCTIONS):
        program.add("add", add_neighbour, [(addresses[i % 2], addresses[1 - i % 2])])
    pool = WorkerPool(num_threads)
    pool._set(executor.CONTROL.contended_steps, contended_steps)
    for _ in range(STEPS):
        pool.run(program, 0)
        for _ in range(INSTRUCTIONS):
            want = (want + np.roll(want, -1)) % 1_000_003
        assert halves[0].tolist() == want.tolist()
    pool.close()


@kernel
def add_index(operands, cores, step, worker, workers) -> None:
    """Set rows[r] = 3 * rows[r] + r for the rows of a share."""
    rows, count = load_i64(operands), load_i64(step)
    for r in range(share_begin(count, worker, workers), share_begin(count, worker + 1, workers)):
        store_i64(rows + r * 8, (3 * load_i64(rows + r * 8) + r) % 1_000_003)


@pytest.mark.parametrize("num_threads", representative([1, 2, 5], 5))
@pytest.mark.parametrize(("count", "shares"), [(32, 4), (33, 4), (39, 2), (5, 2), (3, 8), (0, 2)])
def test_each_share_of_rows_goes_through_the_program_once(num_threads: int, count: int, shares: int) -> None:
    rows, step = np.zeros(count + 1, np.int64), np.array([count], np.int64)
    ADDRESSES.register("rows", rows)
    program = Program("shares", rows)
    for _ in range(INSTRUCTIONS):
        program.add("add", add_index, [(rows.ctypes.data,)])
    index = np.append(np.arange(count), 0)
    want = np.zeros(count + 1, np.int64)
    pool = WorkerPool(num_threads)
    for _ in range(STEPS):
        pool.run(program, step.ctypes.data, shares=shares)
        pool.run(program, step.ctypes.data)  # the same with equal shares and a barrier after each instruction
    for _ in range(2 * STEPS * INSTRUCTIONS):
        want = (3 * want + index) % 1_000_003
    assert rows.tolist() == want.tolist()
    pool.close()


def test_shares_have_whole_fours_of_rows() -> None:
    """A matmul multiplies four rows of one panel together."""
    begin_of = share_begin.function
    for count in range(70):
        for shares in range(1, 9):
            begins = [begin_of(count, share, -shares) for share in range(shares + 1)]
            assert (begins[0], begins[-1]) == (0, count)
            assert begins == sorted(begins)
            assert all(begin % 4 == 0 for begin in begins[:-1] if begin < count)
