"""The instruction sets that kernels are written for, and the CPU features that each needs. Reads no CPU.

Each is a level of x86-64 or ARM that many hosts share, and kernels are compiled for a level rather than for this host.
Numba keys its cache by the CPU's name and features, which differ between generations and even between hypervisors. With
levels, the cache in an image or a volume fits every host that reaches its level. The kernels' vectors and tiles are
explicit, so a level costs no speed. A host below all levels compiles for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ..config.formats import Isa, LevelIsa

ISAS: tuple[Isa, ...] = (*get_args(LevelIsa), "portable")  # best first

_V3 = ("sse4.2", "popcnt", "cx16", "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_VNNI = ("avx512vnni",)
_BF16 = (*_VNNI, "avx512bf16")
_AMX = (*_BF16, "prfchw", "amx-tile", "amx-bf16", "amx-int8")
_ARM = ("neon",)
_DOT = ("lse", "dotprod")  # lse: atomics in one instruction; every CPU with dot products has them
_I8MM = (*_DOT, "i8mm", "bf16")  # Armv8.6-A has both; a CPU with one of them alone takes the level below

_WHOLE_DPWSSD = "fast-dpwssd"  # LLVM divides VPDPWSSD without it; the two instructions take more of the host's units

Machine = Literal["x86_64", "aarch64"]


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set and its level of an architecture, in LLVM's words."""

    isa: LevelIsa
    name: str
    cpu: str
    implied: tuple[str, ...]  # features that `cpu` includes (x86-64 psABI, microarchitecture levels; Armv8.0-A)
    extra: tuple[str, ...]  # features beyond those of `cpu`

    @property
    def features(self) -> str:
        """`extra` in the syntax of LLVM and Numba, and what it is to know of such hosts."""
        tuning = (_WHOLE_DPWSSD,) if "avx512vnni" in self.extra else ()
        return ",".join(f"+{name}" for name in self.extra + tuning)

    @property
    def all_features(self) -> Mapping[str, bool]:
        """All features that code for the level may use."""
        return dict.fromkeys(self.implied + self.extra, True)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that make a process compile for the level."""
        return {"NUMBA_CPU_NAME": self.cpu, "NUMBA_CPU_FEATURES": self.features}

    @property
    def machine(self) -> Machine:
        """The architecture, as `platform.machine` names it on Linux."""
        return "x86_64" if self.cpu.startswith("x86-64") else "aarch64"

    def lacks(self, host: Mapping[str, bool]) -> tuple[str, ...]:
        """Features of the level that a host with the features `host` lacks."""
        return tuple(name for name in self.all_features if not host.get(name, False))


TARGETS = (  # best first; beside each, the first hosts that reach it
    Target("amx", "x86-64-v4-amx", "x86-64-v4", _V4, _AMX),  # Sapphire Rapids
    Target("avx512-bf16", "x86-64-v4-bf16", "x86-64-v4", _V4, _BF16),  # Cooper Lake, Zen 4
    Target("avx512-vnni", "x86-64-v4-vnni", "x86-64-v4", _V4, _VNNI),  # Cascade Lake
    Target("avx512", "x86-64-v4", "x86-64-v4", _V4, ()),  # Skylake-SP
    Target("avx2-vnni", "x86-64-v3-vnni", "x86-64-v3", _V3, ("avxvnni",)),  # Alder Lake
    Target("avx2", "x86-64-v3", "x86-64-v3", _V3, ()),  # Haswell, Zen
    Target("neon-i8mm", "armv8-a-i8mm-bf16", "generic", _ARM, _I8MM),  # Neoverse V1 (Graviton3), Apple M2
    Target("neon-dot", "armv8-a-dotprod", "generic", _ARM, _DOT),  # Neoverse N1 (Graviton2, Altra), Apple M1
)
BY_ISA: Mapping[str, Target] = {target.isa: target for target in TARGETS}


def best_target(host: Mapping[str, bool]) -> Target | None:
    """Return the highest level that a host with these features reaches; None below all levels."""
    return next((target for target in TARGETS if not target.lacks(host)), None)


def isas_of(features: Mapping[str, bool]) -> tuple[Isa, ...]:
    """Return the instruction sets that code with these CPU features may use, best first."""
    return (*(target.isa for target in TARGETS if not target.lacks(features)), "portable")


def isas_within(isa: Isa) -> tuple[Isa, ...]:
    """Return `isa` and the instruction sets that every CPU with it has, best first."""
    return isas_of(BY_ISA[isa].all_features) if isa in BY_ISA else (isa,)
