"""Numba as a compiler for ARM on another host: for its assembly, and for emulated hosts, where compiling takes minutes.

`python -m tests.arm.cross CACHE` compiles kernels into a cache folder in which an emulated host finds them: Numba's
index goes by the triple, the CPU and its features, and these are the same on both sides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import get_args

import llvmlite.binding

from server.config.formats import Dtype, LevelIsa, WeightFormat
from server.device.isa import BY_ISA

TRIPLE = "aarch64-unknown-linux-gnu"
FORMATS: tuple[WeightFormat, ...] = ("float32", "bfloat16", "int8", "int4")  # that tests/arm/emulate.sh multiplies


def compile_for_arm() -> None:
    """Let this process compile for ARM and run nothing of it; before Numba is first asked to compile."""
    llvmlite.binding.initialize_all_targets()
    llvmlite.binding.initialize_all_asmprinters()
    llvmlite.binding.get_process_triple = lambda: TRIPLE


def main(directory: str) -> None:
    """The kernels of FORMATS on each path for ARM, those around them, and the functions that Python calls."""
    best = BY_ISA["neon-i8mm"]
    os.environ.update(best.environment)  # read when Numba is imported
    compile_for_arm()
    from server.kernels.attention.rope import head_squares
    from server.kernels.compilation import compile_kernels
    from server.kernels.dispatch import linear_kernels_of, shared_kernels
    from server.kernels.isa.cache import use_cache
    from server.kernels.isa.jit import Kernel
    from server.kernels.logits import finish_logits
    from server.kernels.sample.sample import sample
    from tools.precompile import compile_host_functions

    def kernels() -> Iterator[Kernel]:
        isas: tuple[LevelIsa, ...] = ("neon-i8mm", "neon-dot")
        for weights in FORMATS:
            for isa in isas:
                linear = linear_kernels_of(weights, isa)
                yield from (*linear.kernels, linear.embed_tiles)
        for dtype in get_args(Dtype):
            shared = shared_kernels(dtype, 64, 32, best.isa)
            yield from (*shared.kernels, shared.embed_rows)
        yield from (finish_logits, head_squares, sample)

    use_cache(directory)
    compile_host_functions()
    compile_kernels(kernels(), print)


if __name__ == "__main__":
    main(sys.argv[1])
