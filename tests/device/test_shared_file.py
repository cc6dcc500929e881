"""Memory without a name, which a process that is started has too, and that nobody has to remove."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from pathlib import Path

import pytest

from server.device.shared_file import SharedFile


def write(file: SharedFile, value: int) -> None:
    memory = file.map()
    memory[len(memory) - 1] = value


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_a_process_that_is_started_writes_what_this_one_reads(context: str) -> None:
    file = SharedFile("test", 10_000)
    memory = file.map()
    assert (len(memory), memory[:]) == (10_000, bytes(10_000))
    process = multiprocessing.get_context(context).Process(target=write, args=(file, 7))  # type: ignore[attr-defined]
    process.start()
    process.join()
    file.close()
    file.close()
    assert (process.exitcode, memory[9_999]) == (0, 7)  # which outlives both the process and the descriptor


def test_a_host_that_has_no_files_in_memory_keeps_none_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = SharedFile("test", 100)
    write(file, 3)
    assert file.map()[99] == 3
    assert list(tmp_path.iterdir()) == []
    file.close()
