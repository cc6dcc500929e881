"""Cost of a rotation beside the product that reads its result: `python -m tests.kernels.rotation_bench [ISA]`.

It uses one thread; each figure is the minimum of many short runs in turns, so that other load of the host matters
little.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from neuronserve.server.host.isa import BY_ISA

WIDTHS, ROWS = (576, 2048, 8192), (1, 16)
PASSES = 400


def main(isa: str | None) -> None:
    """Print the times of packing and of a product with k outputs, for each width k and number of rows."""
    if isa is not None:
        os.environ.update(BY_ISA[isa].environment)
    import numpy as np  # after the environment that the compiler reads

    from neuronserve.server.kernels.dispatch import host_isas, linear_kernels
    from neuronserve.server.kernels.program import Program
    from neuronserve.server.kernels.records import STEP, MatmulOperands, PackOperands
    from neuronserve.server.kernels.workers import WorkerPool
    from tests.kernels.kernel_bench import address, aligned, step_record

    pool, plain, rotated = WorkerPool(1), linear_kernels("int8"), linear_kernels("int8-rotated")
    print(f"{host_isas()[0]}: microseconds, least of {PASSES} runs")
    print(f"{'k':>6} {'rows':>5} {'packed':>9} {'rotated':>9} {'product':>10} {'rotation':>9}")

    def timed(program: Any, rows: int) -> float:
        record = np.array(step_record(num_tokens=rows), np.int64)
        begin = time.perf_counter()
        pool.run(program, record.ctypes.data)
        return time.perf_counter() - begin

    for k in WIDTHS:
        source, scratch = aligned((16, k), np.float32), aligned((1, k), np.float32)
        source[:] = np.random.default_rng(0).standard_normal(source.shape)
        panels, scales, weights = aligned((16, k), np.int8), aligned((16,), np.float32), aligned((k * k,), np.int8)
        columns, output = aligned((k,), np.float32), aligned((16, k), np.float32)
        pack = PackOperands(address(source), address(panels), address(scales), k)
        pack = pack._replace(scratch=address(scratch), scratch_stride=scratch.strides[0])
        wide = aligned((64 * k,), np.uint8)
        product = MatmulOperands(
            address(panels),
            address(scales),
            address(weights),
            address(columns),
            address(columns),
            address(output),
            k // 16,
            k // 64,
            k,
            STEP.num_tokens,
            address(wide),
            wide.nbytes,
            0,
        )
        steps = ((plain.pack_rows, pack), (rotated.pack_rows, pack), (plain.matmul, product))
        programs = []
        for kernel, operands in steps:
            programs.append(Program(kernel.name, source))
            programs[-1].add(kernel.name, kernel, [operands])
        for rows in ROWS:
            idle, *times = (
                min(timed(p, n) for _ in range(PASSES)) for p, n in ((programs[0], 0), *((p, rows) for p in programs))
            )
            packed, turned, multiplied = (1e6 * (each - idle) for each in times)
            share = (turned - packed) / (packed + multiplied)
            print(f"{k:6} {rows:5} {packed:9.2f} {turned:9.2f} {multiplied:10.2f} {100 * share:8.1f}%", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
