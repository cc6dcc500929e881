"""Compile the kernels for every CPU level into the installed package: `python -m tools.precompile`. For image builds.

The server copies what it finds there to its kernel cache (server/device/kernels/jit.py). Nothing is run, so the machine
that builds need not reach the levels it builds for. One process for each level, because Numba has one target for life.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from server.config import Dtype
from server.device import layout
from server.device.dispatch import Isa, kernels_of
from server.device.kernels import executor
from server.device.kernels.jit import PREBUILT, compile_kernels, use_cache
from server.device.kernels.sample import sample
from server.device.kernels.target import TARGETS, Target

DTYPES: tuple[Dtype, ...] = ("bfloat16", "float32")


def isa_of(target: Target) -> Isa:
    """The instruction set that hosts of this level run (server/device/dispatch.py)."""
    if "amx-bf16" in target.extra:
        return "amx"
    return "avx512" if "avx512bf16" in target.extra else "portable"


def compile_all(isa: Isa, directory: Path) -> None:
    """Every kernel and host function that serving with `isa` uses, for the CPU that Numba has been told."""
    use_cache(str(directory), prebuilt=directory)
    kernels = [kernel for dtype in DTYPES for kernel in kernels_of(dtype, isa).kernels]
    compile_kernels((*kernels, sample), lambda _: None)
    for function in (executor.init_control, executor.run_step, executor.stop_workers):
        function.compile_for(0)
    executor.serve_steps.compile_for(0, 0)
    rows = np.zeros((16, 16), np.uint32)
    read_only = rows.copy()
    read_only.flags.writeable = False  # as a mapped checkpoint's
    for each in (rows, read_only):
        layout.pack.compile_for(each, np.zeros((1, 16, 16), np.uint32))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when every level is compiled."""
    parser = argparse.ArgumentParser(prog="python -m tools.precompile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, default=PREBUILT, help="default: inside the package")
    parser.add_argument(
        "--isa", choices=("amx", "avx512", "portable"), help="this process compiles, for NUMBA_CPU_NAME"
    )
    args = parser.parse_args(argv)
    if args.isa is not None:
        compile_all(args.isa, args.directory)
        return 0
    for target in TARGETS:
        begin = time.perf_counter()
        environment = {**os.environ, "NUMBA_CPU_NAME": target.cpu, "NUMBA_CPU_FEATURES": target.features}
        command = [
            sys.executable,
            "-m",
            "tools.precompile",
            "--isa",
            isa_of(target),
            "--directory",
            str(args.directory),
        ]
        subprocess.run(command, env=environment, check=True)
        print(f"{target.name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
