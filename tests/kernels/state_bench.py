"""Speed of the kernels of state layers: `python -m tests.kernels.state_bench [ISA]`.

Decode is compared with the host's read bandwidth in the same turn, prefill with the peak that the operations allow.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from neuronserve.server.host.isa import BY_ISA

SHAPES = {  # kind, heads, key heads, key dim, value dim of a published layer
    "Qwen3-Next": ("delta", 32, 16, 128, 128),
    "Granite-4-H-Small": ("mamba2", 128, 1, 128, 64),
    "Falcon-H1-34B": ("mamba2", 32, 2, 256, 128),
}
SEQS, TOKENS, PASSES = 48, 512, 15


def main(isa: str | None) -> None:
    """Print bytes of state read and written in decode, and floating-point operations of a prompt."""
    if isa is not None:
        os.environ.update(BY_ISA[isa].environment)
    import numpy as np  # after the environment that the compiler reads

    from neuronserve.server.device.state_layout import recurrence_scratch_bytes, recurrent_state_bytes
    from neuronserve.server.kernels.bandwidth_probe import ReadOperands, read_memory
    from neuronserve.server.kernels.dispatch import StateKernels, host_isas
    from neuronserve.server.kernels.program import Program
    from neuronserve.server.kernels.state.records import RecurrenceOperands
    from neuronserve.server.kernels.workers import WorkerPool
    from tests.kernels.kernel_bench import address, aligned, float_bits, step_record

    pool, kernels, rng = WorkerPool(len(os.sched_getaffinity(0))), StateKernels(), np.random.default_rng(0)
    print(f"{host_isas()[0]}, {pool.num_threads} threads, median of {PASSES} passes")

    def timed(program: Any, **fields: int) -> float:
        record = np.array(step_record(**fields), np.int64)
        begin = time.perf_counter()
        pool.run(program, record.ctypes.data)
        return time.perf_counter() - begin

    for name, (kind, heads, key_heads, key_dim, value_dim) in SHAPES.items():
        size = recurrent_state_bytes(heads, key_dim, value_dim)
        rows, columns = max(SEQS, TOKENS), 2 * key_heads * key_dim + heads * value_dim
        memory, mixed = aligned((SEQS + 1, size // 4), np.float32), aligned((rows, columns), np.float32)
        gates, output = aligned((rows, 2 * heads), np.float32), aligned((rows, heads * value_dim), np.float32)
        memory[:], mixed[:] = 0.5, rng.standard_normal(mixed.shape)
        zeros, sums = np.zeros(heads, np.float32), aligned((pool.num_threads, 16), np.float32)
        scratch = aligned((pool.num_threads, recurrence_scratch_bytes(key_dim) // 4), np.float32)
        of = (np.arange(heads) * key_heads // heads).astype(np.int32)
        at, gate = address(mixed), address(gates)
        operands = RecurrenceOperands(
            *(at, at + key_heads * key_dim * 4, at + 2 * key_heads * key_dim * 4, columns),
            *(gate, gate + heads * 4, 2 * heads, address(zeros), address(zeros), 0, 0, float_bits(np.inf)),
            *(float_bits(key_dim**-0.5), address(of), heads, heads, key_dim, value_dim),
            *(address(output), heads * value_dim, address(memory), size, address(scratch), scratch.strides[0]),
        )
        program, reading = Program(name, memory), Program("read", memory)
        kernel = kernels.delta_rule if kind == "delta" else kernels.mamba2
        program.add(kernel.name, kernel, [operands])
        reading.add("read", read_memory, [ReadOperands(address(memory), memory.nbytes // 64, address(sums))])
        starts, slots = np.arange(SEQS + 1, dtype=np.int32), np.arange(1, SEQS + 1, dtype=np.int32)
        prompt, one = np.array([0, TOKENS], np.int32), np.ones(TOKENS, np.int32)
        decode = {"num_seqs": SEQS, "query_start": address(starts)}
        same = {"state_read": address(slots), "state_write": address(slots)}
        in_one = {"state_read": address(one), "state_write": address(one)}
        times = np.array(
            [
                (
                    timed(reading),
                    timed(program, **decode, **same),
                    timed(program, num_seqs=1, query_start=address(prompt), **in_one),
                )
                for _ in range(PASSES)
            ]
        )
        read, update, scan = np.median(times, 0)
        share = np.median(2 * SEQS * size / times[:, 1] / (memory.nbytes / times[:, 0]))
        flops = (7 if kind == "delta" else 5) * TOKENS * heads * key_dim * value_dim
        print(
            f"{name:18} read {memory.nbytes / read / 1e9:6.1f} GB/s, decode {2 * SEQS * size / update / 1e9:6.1f} GB/s "
            f"({share:4.0%}), prompt {flops / scan / 1e9:6.1f} GFLOP/s, {1e6 * scan / TOKENS:6.2f} us a token",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
