"""CPU features of an ARM host, in LLVM's names, as the operating system reports them.

LLVM itself reads /proc/cpuinfo, which belongs to another machine under emulation, and knows Macs by their CPU's name.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Mapping

from .sysctl import sysctl

# Linux: entry of the auxiliary vector and bit (arch/arm64/include/uapi/asm/hwcap.h).
_AT_HWCAP, _AT_HWCAP2 = 16, 26
HWCAPS: Mapping[str, tuple[int, int]] = {
    "neon": (_AT_HWCAP, 1),
    "lse": (_AT_HWCAP, 8),
    "dotprod": (_AT_HWCAP, 20),
    "i8mm": (_AT_HWCAP2, 13),
    "bf16": (_AT_HWCAP2, 14),
}
# macOS (Apple: Determining Instruction Set Characteristics).
SYSCTLS: Mapping[str, str] = {
    "neon": "hw.optional.AdvSIMD",
    "lse": "hw.optional.arm.FEAT_LSE",
    "dotprod": "hw.optional.arm.FEAT_DotProd",
    "i8mm": "hw.optional.arm.FEAT_I8MM",
    "bf16": "hw.optional.arm.FEAT_BF16",
}


def arm_features() -> Mapping[str, bool]:
    """Return the features of this host; empty on other architectures."""
    if platform.machine() not in {"aarch64", "arm64"}:
        return {}
    return of_sysctl(sysctl) if sys.platform == "darwin" else of_hwcaps(_auxiliary)


def of_hwcaps(read: Callable[[int], int]) -> Mapping[str, bool]:
    """Return the features in the words of the auxiliary vector, which `read` gives by entry."""
    return {name: bool(read(entry) >> bit & 1) for name, (entry, bit) in HWCAPS.items()}


def of_sysctl(read: Callable[[str], int | None]) -> Mapping[str, bool]:
    """Return the features in the numbers that `read` gives by name: 1 for a feature, 0 or None otherwise."""
    return {name: bool(read(key)) for name, key in SYSCTLS.items()}


def _auxiliary(entry: int) -> int:
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return int(getauxval(entry))
