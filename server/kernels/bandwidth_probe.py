"""Memory bandwidth of this host, measured by the workers that run programs."""

from __future__ import annotations

from typing import NamedTuple

from .isa import simd
from .isa.jit import kernel, share_begin
from .isa.memory import load_i64, prefetch, store_f32
from .records import offsets


class ReadOperands(NamedTuple):
    """Memory that is read once."""

    address: int
    lines: int  # of 64 bytes
    sums: int  # float32 [workers], 64 bytes apart: keeps the reads from being optimized away


READ = offsets(ReadOperands)


@kernel
def read_memory(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Sum all float32. Items are runs of eight cache lines."""
    runs = load_i64(operands + READ.lines) // 8
    address = load_i64(operands + READ.address)
    a = b = c = d = simd.splat(0.0)
    for run in range(share_begin(runs, worker, workers), share_begin(runs, worker + 1, workers)):
        at = address + run * 512
        for line in range(0, 512, 64):
            prefetch(at + 8192 + line)
        a = simd.add(simd.add(a, simd.load(at)), simd.load(at + 256))
        b = simd.add(simd.add(b, simd.load(at + 64)), simd.load(at + 320))
        c = simd.add(simd.add(c, simd.load(at + 128)), simd.load(at + 384))
        d = simd.add(simd.add(d, simd.load(at + 192)), simd.load(at + 448))
    store_f32(load_i64(operands + READ.sums) + worker * 64, simd.sum_lanes(simd.add(simd.add(a, b), simd.add(c, d))))
