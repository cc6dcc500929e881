"""Memory files without a name, which child processes share and which need no removal."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from pathlib import Path

import pytest

from neuronserve.server.host.shared_file import SharedFile


def append(file: SharedFile) -> None:
    file.write([file.read(3, 0), memoryview(b"456")], 3)


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


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_it_is_read_and_written_by_calls_too_and_given_back_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    file = SharedFile("test", 0)
    file.write([b"12", b"3"], 0)
    process = multiprocessing.get_context("forkserver").Process(target=append, args=(file,))
    process.start()
    process.join()
    assert (process.exitcode, file.read(10, 1)) == (0, b"23123456")
    file.clear()
    assert file.read(10, 0) == b""
