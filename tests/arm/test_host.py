"""Preconditions of `make arm-test`: an emulated host with every path for ARM, which finds cross-compiled kernels."""

from __future__ import annotations

import platform

import llvmlite.binding
import pytest

from neuronserve.server.host.isa import BY_ISA
from neuronserve.server.kernels.dispatch import host_isas
from neuronserve.server.kernels.isa.target import use_target
from tests.arm.cross import TRIPLE

pytestmark = pytest.mark.skipif(platform.machine() != "aarch64", reason="this host is no ARM")


def test_the_host_is_compiled_for_as_another_compiles_for_it() -> None:
    import numba

    use_target()
    best = BY_ISA["neon-i8mm"]
    assert host_isas() == ("neon-i8mm", "neon-dot", "portable")
    assert llvmlite.binding.get_process_triple() == TRIPLE
    assert (best.cpu, best.features) == (numba.config.CPU_NAME, numba.config.CPU_FEATURES)
