"""Features of ARM hosts, from what Linux and macOS say of them, and the path that each takes."""

from __future__ import annotations

import platform

import pytest

from neuronserve.server.config.formats import Isa
from neuronserve.server.host.arm_features import HWCAPS, SYSCTLS, arm_features, of_hwcaps, of_sysctl
from neuronserve.server.host.isa import isas_of
from neuronserve.server.host.sysctl import sysctl

# Words of the auxiliary vector: baseline with AES and CRC, then those of the extensions' bits (kernel: elf_hwcaps).
CORTEX_A72 = {16: 0xFF & ~0x100, 26: 0}
NEOVERSE_N1 = {16: 0x119FFF, 26: 0}
NEOVERSE_V1 = {16: 0xFFFFFFFF, 26: 1 << 13 | 1 << 14}


@pytest.mark.parametrize(
    ("words", "path"), [(CORTEX_A72, "portable"), (NEOVERSE_N1, "neon-dot"), (NEOVERSE_V1, "neon-i8mm")]
)
def test_the_path_of_a_linux_host(words: dict[int, int], path: Isa) -> None:
    assert isas_of(of_hwcaps(words.__getitem__))[0] == path


@pytest.mark.parametrize(
    ("has", "path"),
    [
        ({"neon", "lse", "dotprod"}, "neon-dot"),  # M1
        ({"neon", "lse", "dotprod", "i8mm", "bf16"}, "neon-i8mm"),  # M2
        ({"neon", "lse", "dotprod", "i8mm"}, "neon-dot"),
        (set(), "portable"),
    ],
)
def test_the_path_of_a_mac(has: set[str], path: Isa) -> None:
    read = {SYSCTLS[name]: 1 for name in has}
    assert isas_of(of_sysctl(read.get))[0] == path
    assert isas_of(of_sysctl(lambda name: read.get(name, 0)))[0] == path


def test_both_systems_are_asked_for_the_same() -> None:
    assert HWCAPS.keys() == SYSCTLS.keys()


def test_a_host_that_is_no_arm_has_none_of_it() -> None:
    if platform.machine() in {"aarch64", "arm64"}:
        assert arm_features()["neon"]
    else:
        assert arm_features() == {}


def test_a_number_that_the_system_does_not_have_is_none() -> None:
    assert sysctl("hw.optional.of_no_host") is None
