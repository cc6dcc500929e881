"""Which CPU the kernels are compiled for: a level that many hosts share, rather than this very host.

Numba keys its cache by the CPU's name and features, on which no two generations agree (nor does one under two
hypervisors). With a level, a cache that an image or a volume brings is good on every host that reaches it. The kernels'
vectors and tiles are explicit, so a level costs them no speed. Other architectures are compiled for the host itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import llvmlite.binding
import numba

_V3 = ("sse4.2", "popcnt", "cx16", "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_VNNI = ("avx512vnni",)
_BF16 = (*_VNNI, "avx512bf16")
_AMX = (*_BF16, "prfchw", "amx-tile", "amx-bf16", "amx-int8")


@dataclass(frozen=True, slots=True)
class Target:
    """A level of x86-64, in LLVM's words."""

    name: str
    cpu: str
    implied: tuple[str, ...]  # features that `cpu` stands for (x86-64 psABI, microarchitecture levels)
    extra: tuple[str, ...]  # features beyond those of `cpu`

    @property
    def features(self) -> str:
        """`extra` as LLVM and Numba take it."""
        return ",".join(f"+{name}" for name in self.extra)

    @property
    def all_features(self) -> Mapping[str, bool]:
        """Everything that code for the level may use."""
        return dict.fromkeys(self.implied + self.extra, True)

    def runs_on(self, host: Mapping[str, bool]) -> bool:
        """Whether a host with these features reaches the level."""
        return all(host.get(name, False) for name in self.all_features)


TARGETS = (  # best first; beside each, the first hosts that reach it
    Target("x86-64-v4-amx", "x86-64-v4", _V4, _AMX),  # Sapphire Rapids
    Target("x86-64-v4-bf16", "x86-64-v4", _V4, _BF16),  # Cooper Lake, Zen 4
    Target("x86-64-v4-vnni", "x86-64-v4", _V4, _VNNI),  # Cascade Lake
    Target("x86-64-v4", "x86-64-v4", _V4, ()),  # Skylake-SP
    Target("x86-64-v3-vnni", "x86-64-v3", _V3, ("avxvnni",)),  # Alder Lake
    Target("x86-64-v3", "x86-64-v3", _V3, ()),  # Haswell, Zen
)


def best_target(host: Mapping[str, bool]) -> Target | None:
    """The highest level that a host with these features reaches; None below all of them."""
    return next((target for target in TARGETS if target.runs_on(host)), None)


def use_best_target() -> None:
    """Make Numba compile for this host's level, unless NUMBA_CPU_NAME says otherwise. Before the first `njit`."""
    target = best_target(llvmlite.binding.get_host_cpu_features())
    if target is not None and numba.config.CPU_NAME is None and numba.config.CPU_FEATURES is None:
        numba.config.CPU_NAME, numba.config.CPU_FEATURES = target.cpu, target.features


def compiled_features() -> Mapping[str, bool]:
    """What compiled code may use, in LLVM's names: the level's features, or the host's where it has no level."""
    told = numba.config.CPU_NAME, numba.config.CPU_FEATURES
    target = next((each for each in TARGETS if (each.cpu, each.features) == told), None)
    host: Mapping[str, bool] = llvmlite.binding.get_host_cpu_features()
    return host if target is None else target.all_features
