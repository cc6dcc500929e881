"""The CPU that kernels are compiled for: a level of server/host/isa.py, the host's best or a forced one."""

from __future__ import annotations

from collections.abc import Mapping

import llvmlite.binding
import numba

from ...config.formats import LevelIsa
from ...host.arm_features import arm_features
from ...host.isa import BY_ISA, TARGETS, best_target

# NUMBA_CPU_NAME, or the process that this one helps to compile, has set it.
_IS_FIXED = numba.config.CPU_NAME is not None or numba.config.CPU_FEATURES is not None


def host_features() -> Mapping[str, bool]:
    """Return the features of this host's CPU, in LLVM's names."""
    return {**llvmlite.binding.get_host_cpu_features(), **arm_features()}


def use_target(isa: LevelIsa | None = None) -> None:
    """Make Numba compile for a level, by default this host's best, unless NUMBA_CPU_NAME says otherwise.

    Must be called before anything is compiled.
    """
    host = host_features()
    target = best_target(host) if isa is None or BY_ISA[isa].lacks(host) else BY_ISA[isa]  # refused later
    if target is not None and not _IS_FIXED:
        numba.config.CPU_NAME, numba.config.CPU_FEATURES = target.cpu, target.features


def compiled_features() -> Mapping[str, bool]:
    """Return the features that compiled code may use, in LLVM's names: the level's, or else the host's."""
    compiled_for = numba.config.CPU_NAME, numba.config.CPU_FEATURES
    target = next((each for each in TARGETS if (each.cpu, each.features) == compiled_for), None)
    return host_features() if target is None else target.all_features
