"""Numba as a compiler for ARM on another host: for assembly, and for emulated hosts, where compiling takes minutes.

`python -m tests.arm.cross CACHE LEVEL` compiles kernels into a cache folder where an emulated host finds them: Numba's
index depends on the triple, the CPU and its features, which are the same on both sides. A LEVEL is an instruction set
of ARM, or `portable` for a CPU below all levels.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping

import llvmlite.binding

from neuronserve.server.host.isa import BY_ISA, TARGETS

TRIPLE = "aarch64-unknown-linux-gnu"
# Parts of names of kernels for x86-64, and of those around its tile unit (rope_kv_pairs, gate_panels).
X86 = frozenset(target.isa.partition("-")[0] for target in TARGETS if target.machine == "x86_64") | {"pairs", "panels"}
BEST = "neon-i8mm"
# Parts of names of kernels that the tests of other levels (golden files of float32 and bfloat16) do not run.
UNUSED = frozenset({"i8", "w8", "i4", "fp4", "e4m3", "e5m2", "mxfp8", "products", "lora", "sides"})
# Tests that define kernels of their own, which are compiled here too.
MAKERS = ("tests.kernels.test_sleep", "tests.kernels.test_workers")


def environment(level: str) -> Mapping[str, str]:
    """Return the variables that make a process compile for a level, or for what every ARM CPU has."""
    if level in BY_ISA:
        return BY_ISA[level].environment
    return {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+neon"}


def compile_for_arm() -> None:
    """Make this process compile for ARM, without running the result. Must precede Numba's first compilation."""
    llvmlite.binding.initialize_all_targets()
    llvmlite.binding.initialize_all_asmprinters()
    llvmlite.binding.get_process_triple = lambda: TRIPLE


def main(directory: str, level: str) -> None:
    """Compile host functions and every kernel for ARM's best level, or those that another level's tests run."""
    os.environ.update(environment(level))  # read when Numba is imported
    compile_for_arm()
    from neuronserve.server.kernels.compilation import compile_kernels
    from neuronserve.server.kernels.isa.cache import use_cache
    from neuronserve.server.kernels.isa.jit import KERNELS_OF, Kernel
    from tools.precompile import compile_host_functions

    foreign = X86 | (_names_beyond(level) | UNUSED if level != BEST else frozenset())

    def kernels() -> Iterator[Kernel]:
        for each in list(KERNELS_OF.values()):
            if isinstance(each, Kernel) and not any(f"_{part}_" in f"_{each.name}_" for part in foreign):
                yield each

    _import_makers()
    use_cache(directory)
    compile_host_functions()
    compile_kernels(kernels(), print)


def _names_beyond(level: str) -> frozenset[str]:
    """Return the parts of names of kernels that a CPU of the level cannot run."""
    arm = [target.isa for target in TARGETS if target.machine == "aarch64"]  # best first
    beyond = arm[: arm.index(level)] if level in arm else arm
    return frozenset(isa.replace("-", "_") for isa in beyond)


def _import_makers() -> None:
    """Import the modules that define kernels."""
    package = importlib.import_module("neuronserve.server.kernels")
    names = (each.name for each in pkgutil.walk_packages(package.__path__, "neuronserve.server.kernels."))
    for name in (*names, *MAKERS):
        importlib.import_module(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
