"""Every kernel of every path that this host can run is compared with numpy in these tests.

`make isa-test` runs the other paths too, with tests/kernels/emulated.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from neuronserve.server.config.formats import Isa, WeightFormat
from neuronserve.server.device.layout import WEIGHT_BYTES
from neuronserve.server.host.isa import BY_ISA, ISAS
from neuronserve.server.kernels.dispatch import host_isas, linear_kernels_of
from neuronserve.server.kernels.isa.target import host_features
from tests.kernels import test_group_matmul, test_matmul

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = ROOT / "server" / "kernels"
ALIKE: dict[WeightFormat, WeightFormat] = {"int8-rotated": "int8"}  # same product kernels


@pytest.mark.parametrize("isa", ISAS)
def test_each_product_of_a_path_is_compared_with_numpy(isa: Isa) -> None:
    """A skipped path is not tested by this run."""
    if isa not in host_isas():
        lacks = ", ".join(BY_ISA[isa].lacks(host_features())) if isa in BY_ISA else ""
        pytest.skip(f"no kernel of {isa} was run: this host lacks {lacks or 'its permission'}")
    own = {ALIKE.get(weights, weights) for weights in WEIGHT_BYTES if linear_kernels_of(weights, isa).isa == isa}
    compared = {weights for weights, path in (*test_matmul.CASES, *test_group_matmul.CASES) if path == isa}
    assert compared == own


@pytest.mark.thorough  # compiles them anew
@pytest.mark.skipif("amx" in host_isas(), reason="this host has a tile unit")
def test_attention_of_the_tile_unit_is_right_where_its_instructions_are_emulated() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "tests.kernels.emulated", "-q", "-k", "amx"]
    done = subprocess.run(
        [*command, "tests/kernels/test_attention.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"[1-9]\d passed", done.stdout)


def test_each_instruction_that_only_some_hosts_have_can_be_emulated() -> None:
    named = {
        name
        for path in KERNELS.rglob("*.py")
        for name in re.findall(r'"(llvm\.(?:x86|aarch64)[\w.]+)"', path.read_text())
    }
    code = "from tests.kernels.emulated import EMULATED; print(*EMULATED)"
    emulated = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    of_every_level = {"llvm.x86.sse2.pause", "llvm.aarch64.hint"}
    assert named - of_every_level <= set(emulated.split())
