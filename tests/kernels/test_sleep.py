"""Workers that sleep in either way take part in every program once, and end."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from neuronserve.server.kernels.isa.jit import kernel
from neuronserve.server.kernels.isa.memory import fetch_add, load_i64
from neuronserve.server.kernels.program import Program
from neuronserve.server.kernels.sleep import KINDS, Sleep
from neuronserve.server.kernels.workers import WorkerPool
from tests.kernels.kernel_bench import address, aligned

RUNS, THREADS = 500, 3


@kernel
def count_run(operands, cores, step, worker, workers) -> None:
    """Add one to this worker's count."""
    fetch_add(load_i64(operands) + worker * 64, 1)


@pytest.mark.parametrize("how", KINDS)
def test_every_worker_takes_part_in_every_program_and_ends(how: Sleep) -> None:
    counts, before = aligned((THREADS, 8), np.int64), set(threading.enumerate())
    program = Program("count", counts)
    program.add("count", count_run, [(address(counts),)])
    pool = WorkerPool(THREADS, how)
    workers = set(threading.enumerate()) - before
    assert len(workers) == THREADS - 1
    for _ in range(RUNS):
        pool.run(program, 0)
    pool.close()
    assert counts[:, 0].tolist() == [RUNS] * THREADS
    assert not any(worker.is_alive() for worker in workers)
