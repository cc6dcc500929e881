"""Compile the kernels for every CPU level into the installed package: `python -m tools.precompile`. For image builds.

The server copies them to its kernel cache (server/kernels/isa/cache.py). Nothing is run, so the build machine need not
support the levels it builds for. Each level has a process of its own, because Numba has one target for its lifetime.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from neuronserve.server.config.formats import Dtype, KVCacheDtype
from neuronserve.server.device.layout import WEIGHT_BYTES
from neuronserve.server.host.cpu_quota import host_threads
from neuronserve.server.host.isa import TARGETS, isas_of
from neuronserve.server.kernels import executor, rotation
from neuronserve.server.kernels.attention.rope import head_squares
from neuronserve.server.kernels.compilation import compile_kernels
from neuronserve.server.kernels.dispatch import linear_kernels_of, shared_kernels
from neuronserve.server.kernels.isa.cache import PREBUILT, mark_prebuilt, use_cache
from neuronserve.server.kernels.isa.jit import Kernel
from neuronserve.server.kernels.isa.target import compiled_features
from neuronserve.server.kernels.latent import attention as latent_attention
from neuronserve.server.kernels.latent import heads as latent_heads
from neuronserve.server.kernels.logits import finish_logits
from neuronserve.server.kernels.matmul import groups as groups4
from neuronserve.server.kernels.matmul import packing, quantize
from neuronserve.server.kernels.sample.sample import sample

HEAD_DIMS = (64, 80)  # one that tile units take and one that they do not
SMALL: tuple[Literal["bfloat16"], ...] = ("bfloat16",)  # formats of a model that is served as it is stored


def kernels(is_small: bool = False) -> Iterator[Kernel]:
    """Yield the kernels that serving may need on the CPU that Numba compiles for; few formats if `is_small`."""
    isa = isas_of(compiled_features())[0]
    for weights in SMALL if is_small else WEIGHT_BYTES:
        linear = linear_kernels_of(weights, isa)
        yield from (*linear.kernels, linear.embed_tiles)
    for kv_dtype, head_dim in itertools.product(SMALL if is_small else get_args(KVCacheDtype), HEAD_DIMS):
        dtype: Dtype = "float32" if kv_dtype == "float32" else "bfloat16"
        shared = shared_kernels(dtype, head_dim, 32, isa, kv_dtype)
        yield from (*shared.kernels, shared.embed_rows)
    yield from (finish_logits, head_squares, sample)
    if is_small:
        return
    yield from (*latent_heads.WRITES.values(), *latent_heads.QUERIES.values(), *latent_heads.VALUES.values())
    yield from latent_attention.KERNELS.values()


def compile_host_functions() -> None:
    """Compile the functions that Python calls, for the types of their calls."""
    for function in (executor.init_control, executor.run_step, executor.stop_workers):
        function.compile_for(0)
    executor.serve_steps.compile_for(0, 0)
    floats = np.zeros((16, 16), np.float32)
    scales, sums = np.zeros(16, np.float32), np.zeros(16, np.int32)
    quantize.int8_rows.compile_for(floats, floats.astype(np.int8), scales, sums)
    rotation.rotate_rows.compile_for(0, 0, 0, 0)
    lanes, codes = floats.reshape(1, 16, 16), np.zeros((1, 16, 16), np.uint8)
    by_group = np.zeros((1, 1, 16), np.float32)
    groups4.symmetric_scales.compile_for(lanes, 32, groups4.SYMMETRIC, by_group)
    groups4.shifted_scales.compile_for(lanes, 32, groups4.RANGES, by_group, by_group)
    groups4.nearest_codes.compile_for(lanes, 32, by_group, by_group, codes)
    packing.pack_halves.compile_for(codes[0], np.zeros((1, 1, 1, 4, 16, 4), np.uint8))
    quantize.float8_rows.compile_for(floats, floats.astype(np.uint8), scales, 3, 7, quantize.E4M3_MAX)


def compile_levels(directory: Path, *flags: str) -> None:
    """Compile each level in a process, one after the other, because they share the cache's index.

    ARM levels are compiled at the first start on their hosts: images for ARM are mostly built under emulation, where
    compiling one level takes minutes.
    """
    for target in (each for each in TARGETS if each.machine == platform.machine() == "x86_64"):
        begin = time.perf_counter()
        environment = {**os.environ, "NUMBA_CPU_NAME": target.cpu, "NUMBA_CPU_FEATURES": target.features}
        command = [sys.executable, "-m", "tools.precompile", "--this-level", "--directory", str(directory), *flags]
        subprocess.run(command, env=environment, check=True)
        print(f"{target.name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit code 0 if everything is compiled."""
    parser = argparse.ArgumentParser(prog="python -m tools.precompile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, default=PREBUILT, help="default: inside the package")
    parser.add_argument("--this-level", action="store_true", help="only for the CPU of NUMBA_CPU_NAME")
    parser.add_argument("--small", action="store_true", help="only what a decoder in bfloat16 needs")
    args = parser.parse_args(argv)
    args.directory.mkdir(parents=True, exist_ok=True)  # readable by all users
    if args.this_level:
        path = use_cache(str(args.directory), prebuilt=args.directory)
        compile_kernels(kernels(args.small), lambda _: None, host_threads())
        compile_host_functions()
        mark_prebuilt(path)
    else:
        compile_levels(args.directory, *(["--small"] if args.small else []))
    return 0


if __name__ == "__main__":
    sys.exit(main())
