"""The runner of `make arm-test`: it ends tests that hang, and reports every test that did not run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.arm.run import ROWS, Row, read, report, run

ROOT = Path(__file__).resolve().parents[2]
HEAD = "collecting ... collected 5 items / 1 deselected / 4 selected\n\n"
PASSED = "tests/a.py::test_one[neon-dot x] PASSED   [ 25%]\ntests/a.py::test_two PASSED   [ 50%]\n"
SKIPPED = "tests/a.py::test_three SKIPPED (this host has no amx)  [ 75%]\n"
ROW = Row("neon-i8mm", "row", 1, ("tests/a.py",))


def test_a_row_is_good_when_all_that_was_chosen_was_run_and_nothing_failed() -> None:
    found = read(ROW, HEAD + PASSED + SKIPPED + "tests/a.py::test_four PASSED  [100%]\n", is_late=False)
    assert found.is_good
    assert (found.counts["PASSED"], dict(found.reasons)) == (3, {"this host has no amx": 1})
    assert "neon-i8mm row: 1 skipped: this host has no amx" in report([found])


@pytest.mark.parametrize("word", ["FAILED", "ERROR"])
def test_what_failed_is_named(word: str) -> None:
    found = read(ROW, HEAD + PASSED + SKIPPED + f"tests/a.py::test_four[x y] {word}  [100%]\n", is_late=False)
    assert not found.is_good
    assert "neon-i8mm row: failed: tests/a.py::test_four[x y]" in report([found])


@pytest.mark.parametrize("text", ["", HEAD, HEAD + PASSED + SKIPPED, "collected 4 items / 4 deselected / 0 selected\n"])
def test_what_was_not_run_is_no_success(text: str) -> None:
    found = read(ROW, text, is_late=False)
    assert not found.is_good
    assert "neon-i8mm row: ended by itself before all tests were run" in report([found])


@pytest.mark.slow
def test_a_test_that_does_not_end_is_ended_with_its_children_and_named(tmp_path: Path) -> None:
    held = "import subprocess, sys, time; print(sys.argv[1], end=' ', flush=True)\n"
    held += "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    command = [sys.executable, "-c", held, HEAD + PASSED + "tests/a.py::test_three"]
    found = run(Row("portable", "row", 10, ("tests/a.py",)), command, {}, tmp_path / "log")
    assert (found.chosen, found.counts["PASSED"], found.stopped_in) == (4, 2, "tests/a.py::test_three")
    assert not found.is_good
    assert "portable row: ended after 10 s, in tests/a.py::test_three" in report([found])


def test_every_row_is_of_a_file_that_is_there() -> None:
    assert all((ROOT / test.partition("::")[0]).is_file() for row in ROWS for test in row.tests)
