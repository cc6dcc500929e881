"""The inner loops of the paths for ARM, as LLVM compiles them on any host: what they multiply with, in registers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from server.config.formats import LevelIsa
from server.device.isa import BY_ISA

INNER_LOOPS = """
from tests.arm.cross import compile_for_arm
compile_for_arm()
from numba import njit, types
from server.kernels.matmul.lane_products import one_row, unchanged
from server.kernels.matmul.lanes import PRODUCTS
product = PRODUCTS[{cell!r}][{isa!r}]
one, four = one_row(product.step), unchanged(product.step, product.four_rows)
@njit(types.void(*[types.int64] * 5))
def of_one(a, b0, b1, panels, sums):
    one(a, b0, b1, panels, sums)
@njit(types.void(*[types.int64] * 7))
def of_four(a, b0, b1, width, panels, sums, scratch):
    four(a, b0, b1, width, panels, sums, scratch)
print(next(iter({function}.inspect_asm().values())))
"""

CODES = """
from tests.arm.cross import compile_for_arm
compile_for_arm()
from numba import njit, types
from server.kernels.isa import neon, nibbles, simd
@njit(types.void(types.int64, types.int64, types.int64))
def step(sums, word, line):
    simd.store(sums, neon.dot_codes(simd.load(sums), word, nibbles.low_e2m1_neon(line)))
print(next(iter(step.inspect_asm().values())))
"""


@cache
def assembly(code: str, isa: LevelIsa) -> str:
    environment = {**BY_ISA[isa].environment, "PYTHONPATH": ":".join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout


def inner_loops(text: str) -> Iterator[list[str]]:
    """Bodies of loops that have no other inside: from a label to the first branch, where that goes back to it."""
    for label, lines in re.findall(r"^(\.L\w+):\n((?:\t.*\n)+)", text, re.MULTILINE):
        body = re.match(rf"(?:\t(?!b\.|b\t|cbn?z|tbn?z).*\n)*\t(?:b\.\w+|cbn?z)\t(?:\w+, )?{re.escape(label)}\n", lines)
        if body is not None:
            yield body.group().replace("\t", " ").splitlines()


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
    """`count` products at least: four rows, or one row by two column tiles, by a word of sixteen columns or two."""
    path = isa if (isa, cell) != ("neon-dot", "bf16") else "portable"  # which is all that NEON needs of it
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
