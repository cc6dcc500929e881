"""Which CPU the kernels are compiled for: a level of server/device/isa.py, the host's best or the one forced."""

from __future__ import annotations

from collections.abc import Mapping

import llvmlite.binding
import numba

from server.device.arm_features import arm_features
from server.device.isa import TARGETS, best_target, forced_target


def host_features() -> Mapping[str, bool]:
    """What this host's CPU has, in LLVM's names."""
    return {**llvmlite.binding.get_host_cpu_features(), **arm_features()}


def use_target() -> None:
    """Make Numba compile for the level forced, or this host's best, unless NUMBA_CPU_NAME says otherwise.

    Before the first `njit`.
    """
    host = host_features()
    target = forced_target()
    if target is None or target.lacks(host):  # who has forced it refuses to run what follows
        target = best_target(host)
    if target is not None and numba.config.CPU_NAME is None and numba.config.CPU_FEATURES is None:
        numba.config.CPU_NAME, numba.config.CPU_FEATURES = target.cpu, target.features


def compiled_features() -> Mapping[str, bool]:
    """What compiled code may use, in LLVM's names: the level's features, or the host's where it has no level."""
    told = numba.config.CPU_NAME, numba.config.CPU_FEATURES
    target = next((each for each in TARGETS if (each.cpu, each.features) == told), None)
    return host_features() if target is None else target.all_features
