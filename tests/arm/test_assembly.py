"""Inner loops of the paths for ARM, as LLVM compiles them on any host: instructions and registers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from neuronserve.server.config.formats import LevelIsa
from tests.arm.cross import environment

INNER_LOOPS = """
from tests.arm.cross import compile_for_arm
compile_for_arm()
from numba import njit, types
from neuronserve.server.kernels.matmul.lane_products import one_row, unchanged
from neuronserve.server.kernels.matmul.lanes import PRODUCTS
product = PRODUCTS[{cell!r}][{isa!r}]
one, four = one_row(product.step), unchanged(product.step, product.four_rows)
@njit(types.void(*[types.int64] * 5))
def of_one(a, b0, b1, panels, sums):
    one(a, b0, b1, panels, sums)
@njit(types.void(*[types.int64] * 7))
def of_four(a, b0, b1, width, panels, sums, scratch):
    four(a, b0, b1, width, panels, sums, scratch, (0, 0))
print(next(iter({function}.inspect_asm().values())))
"""

CODES = """
from tests.arm.cross import compile_for_arm
compile_for_arm()
from numba import njit, types
from neuronserve.server.kernels.isa import neon, nibbles, simd
@njit(types.void(types.int64, types.int64, types.int64))
def step(sums, word, line):
    simd.store(sums, neon.dot_codes(simd.load(sums), word, nibbles.low_e2m1_neon(line)))
print(next(iter(step.inspect_asm().values())))
"""

WORKER = """
from tests.arm.cross import compile_for_arm
compile_for_arm()
from numba import njit, types
from neuronserve.server.kernels.executor import serve_steps
function = njit(types.void(types.int64, types.int64), error_model="numpy")(serve_steps.function)
print(next(iter(function.inspect_asm().values())))
"""


@cache
def assembly(code: str, level: str) -> str:
    variables = {**environment(level), "PYTHONPATH": ":".join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    return ran.stdout


def inner_loops(text: str) -> Iterator[list[str]]:
    """Yield the bodies of innermost loops: from a label to the first branch that goes back to it."""
    for label, lines in re.findall(r"^(\.L\w+):\n((?:\t.*\n)+)", text, re.MULTILINE):
        body = re.match(rf"(?:\t(?!b\.|b\t|cbn?z|tbn?z).*\n)*\t(?:b\.\w+|cbn?z)\t(?:\w+, )?{re.escape(label)}\n", lines)
        if body is not None:
            yield body.group().replace("\t", " ").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isa", "cell", "function", "instruction", "count"),
    [
        ("neon-i8mm", "i8", "of_four", "smmla", 16),
        ("neon-i8mm", "bf16", "of_four", "bfmmla", 16),
        ("neon-i8mm", "bf16", "of_one", "bfdot", 16),
        ("neon-dot", "i8", "of_four", "sdot", 32),
        ("neon-dot", "i8", "of_one", "sdot", 16),
        ("neon-dot", "bf16", "of_four", "fmla", 32),
    ],
)
def test_an_inner_loop_multiplies_by_the_instruction_of_its_path_and_keeps_its_sums_in_registers(
    isa: LevelIsa, cell: str, function: str, instruction: str, count: int
) -> None:
    """There are `count` products at least: four rows, or one row by two column tiles, by one or two words."""
    path = isa if (isa, cell) != ("neon-dot", "bf16") else "portable"  # the only path that NEON needs for it
    text = assembly(INNER_LOOPS.format(cell=cell, isa=path, function=function), isa)
    loops = [loop for loop in inner_loops(text) if instruction in {line.split()[0] for line in loop}]
    assert loops, text
    for loop in loops:
        assert [line.split()[0] for line in loop].count(instruction) >= count
        assert not [line for line in loop if "[sp" in line]


def test_four_bit_codes_are_looked_up_and_multiplied() -> None:
    text = assembly(CODES, "neon-dot")
    assert len(re.findall(r"^\ttbl\t", text, re.MULTILINE)) == 4
    assert len(re.findall(r"^\tsdot\t", text, re.MULTILINE)) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "updates"),
    [("neon-dot", {"ldaddal", "swpal"}), ("portable", {"ldaxr", "stlxr"})],
    ids=["neon-dot", "portable"],
)
def test_workers_meet_by_instructions_that_keep_their_order(level: str, updates: set[str]) -> None:
    """An emulator on x86-64 reorders nothing that ARM may reorder, so no run would reveal a wrong one of these.

    A worker that goes to sleep marks itself and then counts the others; the last to arrive is counted and then looks
    for marks. Neither may see the other's old value: LDAR waits for such an update before it, and LDAPR would not.
    """
    names = {line.split()[0] for line in assembly(WORKER, level).splitlines() if line.startswith("\t")}
    assert {"ldar", "stlr", "yield"} <= names
    atomic = {name for name in names if re.match(r"ldadd|swp|cas|ld[al]?xr|stl?xr|ldapu?r", name)}
    assert atomic == updates
