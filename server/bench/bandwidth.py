"""The host's memory-read bandwidth, measured by the engine's own threads: the ceiling of every decode step."""

from __future__ import annotations

import statistics
import time

import numpy as np

from server.device.address_map import ADDRESSES
from server.device.hbm import Hbm
from server.kernels.bandwidth_probe import ReadOperands, read_memory
from server.kernels.program import Program
from server.kernels.workers import WorkerPool

PROBE_BYTES = 512 << 20  # larger than any cache that one tenant of a shared host can keep


class BandwidthProbe:
    """Reads the same memory again and again; make one, then `measure` beside what it is compared with."""

    def __init__(self, pool: WorkerPool, num_bytes: int = PROBE_BYTES) -> None:
        self._pool, self._num_bytes = pool, num_bytes
        memory = Hbm(num_bytes).allocate(num_bytes)
        memory.bytes[::4096] = 1  # make every page real
        sums = np.zeros(16 * pool.num_threads, np.float32)
        ADDRESSES.register("sums", sums)
        self._program = Program("read probe", (memory, sums))
        operands = ReadOperands(memory.address, num_bytes // 64, sums.ctypes.data)
        self._program.add("read", read_memory, [operands])

    def measure(self, repeats: int = 5) -> float:
        """Median GB/s (1e9 bytes) over `repeats` passes."""
        rates = []
        for _ in range(repeats):
            begin = time.perf_counter()
            self._pool.run(self._program, 0)
            rates.append(self._num_bytes / (time.perf_counter() - begin) / 1e9)
        return statistics.median(rates)
