"""`make arm-test`: tests for an emulated host, in processes with a time limit each.

`python -m tests.arm.run BUILD [WORD...]`: BUILD is the folder that emulate.sh has filled; WORDs select the rows with
one of them in their level or name. A row that exceeds its limit is ended, and the rest continues. The table at the end
lists what passed, failed, was skipped (and why) or was not reached. Exit code 1 if anything failed or was not reached.
ARM_TEST_PATIENCE multiplies the limits, for a busy host.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.arm.cross import environment

CPUS = {"neon-i8mm": "max", "neon-dot": "max", "portable": "cortex-a72"}  # CPUs that qemu emulates


class Row(NamedTuple):
    """Tests that one process runs, on the kernels of a level."""

    level: str
    name: str
    limit_s: int
    tests: tuple[str, ...]  # arguments of pytest
    choice: str = ""  # pytest's -k
    marks: str | None = None  # pytest's -m, in place of the project's own


_MATMUL, _GROUPS, _KERNELS = "tests/kernels/test_matmul.py", "tests/kernels/test_group_matmul.py", "tests/kernels"
_GOLDEN, _BEST = ("tests/golden/test_golden_logits.py",), "neon-i8mm"
ROWS = (  # most likely failures first
    Row(_BEST, "host", 120, ("tests/arm/test_host.py", f"{_KERNELS}/test_sleep.py", f"{_KERNELS}/test_paths.py")),
    Row(_BEST, "probes", 300, ("tests/bench/test_products.py",), "sums and neon"),
    Row(  # every format on every path, including those that are not the host's best
        _BEST,
        "rows",
        600,
        (
            f"{_MATMUL}::test_a_row_does_not_depend_on_the_batch_or_the_threads",
            f"{_MATMUL}::test_the_largest_codes_are_multiplied_exactly",
            f"{_MATMUL}::test_no_rows_is_no_work",
            f"{_GROUPS}::test_a_row_does_not_depend_on_the_batch_or_the_threads",
            f"{_GROUPS}::test_every_code_by_every_activation",
        ),
        marks="",
    ),
    Row(_BEST, "serve", 900, ("tests/arm/test_serve.py",)),
    Row(_BEST, "golden", 600, _GOLDEN, "tiny-llama-32 or tiny-qwen3-32 or tiny-gpt-oss-32 or tiny-gemma2-32"),
    Row(_BEST, "products", 900, (f"{_MATMUL}::test_matmul_equals_numpy", f"{_GROUPS}::test_a_product_equals_numpy")),
    Row(
        _BEST,
        "gates",
        900,
        (f"{_MATMUL}::test_a_gated_product_equals_numpy", f"{_GROUPS}::test_a_gated_product_equals_numpy"),
    ),
    Row(_BEST, "attention", 900, (f"{_KERNELS}/test_attention.py", f"{_KERNELS}/test_softcap.py")),
    Row(_BEST, "both sides", 600, (f"{_KERNELS}/test_attention_both_sides.py",)),
    Row(
        _BEST,
        "around",
        900,
        tuple(f"{_KERNELS}/test_{name}.py" for name in ("rope", "elementwise_kernels", "cache_cells", "quantize")),
    ),
    Row(_BEST, "experts", 900, (f"{_KERNELS}/test_lora.py", f"{_KERNELS}/test_experts.py")),
    Row(_BEST, "sampler", 900, (f"{_KERNELS}/test_sample.py",), "not many_blocks"),
    Row("neon-dot", "golden", 600, _GOLDEN, "tiny-llama-32 or tiny-gpt-oss-32"),
    Row("portable", "golden", 600, _GOLDEN, "tiny-llama-32 or tiny-gpt-oss-32"),
)


@dataclass(slots=True)
class Outcome:
    """Result of a row."""

    row: Row
    seconds: float = 0.0
    chosen: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # by pytest's words
    reasons: Counter[str] = field(default_factory=Counter)  # of skipped tests
    failed: list[str] = field(default_factory=list)
    stopped_in: str | None = None  # the running test when the time was over

    @property
    def is_good(self) -> bool:
        """Whether all selected tests have run and none has failed."""
        return not self.failed and self.stopped_in is None and self.chosen == sum(self.counts.values()) > 0


def run(row: Row, command: Sequence[str], variables: Mapping[str, str], log: Path) -> Outcome:
    """Run one row's tests with `command` (pytest), and end it with its child processes when its time is over."""
    arguments = ["-v", *row.tests, *(["-k", row.choice] if row.choice else [])]
    arguments += [] if row.marks is None else ["-m", row.marks]
    begin, is_late = time.monotonic(), False
    variables = {**os.environ, **variables}
    # A process group of its own, to be ended as a whole, in this session, which keeps the priority of the run.
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            [*command, *arguments], stdout=stream, stderr=stream, env=variables, process_group=0
        ) as process,
    ):
        try:
            process.wait(row.limit_s)
        except subprocess.TimeoutExpired:
            is_late = True
            os.killpg(process.pid, signal.SIGKILL)
    found = read(row, log.read_text("utf-8", "replace"), is_late)
    found.seconds = time.monotonic() - begin
    return found


def read(row: Row, text: str, is_late: bool) -> Outcome:
    """Parse pytest's verbose output of a row."""
    found = Outcome(row)
    if collected := re.search(
        r"^(?:collecting \.\.\. )?collected (\d+) items?(?: / (\d+) deselected)?", text, re.MULTILINE
    ):
        found.chosen = int(collected[1]) - int(collected[2] or 0)
    for test, word, reason in re.findall(
        r"^(\S+::.+?) (PASSED|FAILED|SKIPPED|ERROR)(?: \((.*)\))?", text, re.MULTILINE
    ):
        found.counts[word] += 1
        if word == "SKIPPED":
            found.reasons[reason] += 1
        elif word != "PASSED":
            found.failed.append(test)
    if is_late:
        last = text.splitlines()[-1:] or [""]
        at_hand = re.fullmatch(r"(\S+::.+?) *", last[0])
        found.stopped_in = at_hand[1] if at_hand else "its start"
    return found


def report(outcomes: Sequence[Outcome]) -> str:
    """Return a table, followed by everything that did not pass."""
    lines = ["level      passed failed skipped not run seconds  row"]
    for each in outcomes:
        bad, left = each.counts["FAILED"] + each.counts["ERROR"], each.chosen - sum(each.counts.values())
        figures = f"{each.counts['PASSED']:6} {bad:6} {each.counts['SKIPPED']:7} {left:7} {each.seconds:7.0f}"
        lines.append(f"{each.row.level:10} {figures}  {each.row.name}")
    for each in outcomes:
        where = f"{each.row.level} {each.row.name}"
        lines += [f"{where}: failed: {test}" for test in each.failed]
        lines += [f"{where}: {count} skipped: {reason}" for reason, count in each.reasons.items()]
        if each.stopped_in is not None:
            lines.append(f"{where}: ended after {each.row.limit_s} s, in {each.stopped_in}")
        elif not each.is_good and not each.failed:
            lines.append(f"{where}: ended by itself before all tests were run")
    return "\n".join(lines)


def main(build: str, *words: str) -> int:
    """Return 0 if every selected test has passed, or was skipped with a reason."""
    folder = Path(build)
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    rows = [row for row in ROWS if not words or any(word in f"{row.level} {row.name}" for word in words)]
    patience = float(os.environ.get("ARM_TEST_PATIENCE", "1"))
    outcomes = []
    for number, row in enumerate(row._replace(limit_s=int(row.limit_s * patience)) for row in rows):
        command = [str(folder / "python"), "-m", "pytest", "-o", f"cache_dir={folder / 'cache'}"]
        variables = {**environment(row.level), "QEMU_CPU": CPUS[row.level], "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        if row.level == "neon-i8mm":  # a server chooses it by itself
            del variables["NUMBA_CPU_NAME"], variables["NUMBA_CPU_FEATURES"]
        outcomes.append(run(row, command, variables, logs / f"{number:02}.log"))
        print(report(outcomes[-1:]), flush=True)
    print(f"\n{report(outcomes)}\nlogs: {logs}")
    return 0 if outcomes and all(each.is_good for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
