"""Kernels in checked mode, each in a process of its own, because a process compiles its kernels in one mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from neuronserve.server.host.isa import TARGETS
from neuronserve.server.kernels.isa import access
from neuronserve.server.kernels.isa.jit import SIGNATURE
from neuronserve.server.kernels.pack import pack_rows_f32

ROOT = Path(__file__).resolve().parent.parent.parent
CHECKED = {"NEURONSERVE_KERNEL_CHECKS": "1"}

# Prints LLVM's code of a kernel for hosts with a tile unit, without running it.
TILES = """
import sys
import numba
from neuronserve.server.kernels.isa import access, amx
from neuronserve.server.kernels.isa.jit import SIGNATURE
from neuronserve.server.kernels.checks import use_checks
def kernel(operands, cores, step, worker, workers):
    amx.configure(16)
    amx.load4(operands, 128)
    amx.store0(amx.stack_tiles(), 64)
    amx.release()
use_checks()
for is_checked in (False, True):
    with access.checked(is_checked):
        print(numba.cfunc(SIGNATURE)(kernel).inspect_llvm(), end=sys.argv[1])
"""


def python(*arguments: str, **environment: str) -> str:
    command, variables = [sys.executable, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["tests/kernels/checked_faults.py", "tests/golden/test_golden_logits.py"])
def test_in_checked_mode(path: str) -> None:
    assert " passed" in python("-m", "pytest", "-q", path, **CHECKED)


def test_without_checks_a_kernel_has_no_trace_of_them() -> None:
    code = numba.cfunc(SIGNATURE, error_model="numpy")(pack_rows_f32.function).inspect_llvm()
    assert "store <16 x float>" in code
    assert not [
        symbol for symbol in (access.CHECK_SYMBOL, access.CHECK_ROWS_SYMBOL, access.STACK_SYMBOL) if symbol in code
    ]


def test_addresses_become_pointers_in_one_place() -> None:
    """Elsewhere only prefetches and calls convert a number to a pointer."""
    files = {path: path.read_text().count("inttoptr") for path in (ROOT / "server" / "kernels").rglob("*.py")}
    assert {path.name: count for path, count in files.items() if count} == {"access.py": 2, "memory.py": 2}


@pytest.mark.thorough
def test_each_row_of_a_tile_is_checked() -> None:
    """The check covers the configured rows, and is absent in unchecked mode."""
    level = {"NUMBA_CPU_NAME": TARGETS[0].cpu, "NUMBA_CPU_FEATURES": TARGETS[0].features}
    plain, checked, _ = python("-c", TILES, "<end>", **level).split("<end>")
    for name in (access.CHECK_ROWS_SYMBOL, access.STACK_SYMBOL, "llvm.x86.sttilecfg"):
        assert name in checked
        assert name not in plain
    assert "llvm.x86.tileloadd64" in plain
