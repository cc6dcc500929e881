"""Workers meet after each instruction, spinning or sleeping, whatever else runs on their CPUs."""

from __future__ import annotations

import numpy as np
import pytest

from server.device.address_map import ADDRESSES
from server.kernels import executor
from server.kernels.isa.jit import kernel
from server.kernels.isa.memory import load_i64, store_i64
from server.kernels.program import Program
from server.kernels.workers import WorkerPool

INSTRUCTIONS, STEPS = 40, 30


@kernel
def add_neighbour(operands, cores, step, worker, workers) -> None:
    """Add to the worker's value what its neighbour had; source and target take turns."""
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


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("contended_steps", [0, STEPS], ids=["spinning", "sleeping"])
def test_no_worker_begins_an_instruction_before_all_have_ended_the_last(num_threads: int, contended_steps: int) -> None:
    """More workers than CPUs take turns on them, so each barrier meets some that are far behind."""
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
