"""Reading a piece of a file of weights takes as many calls as the system wants."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from neuronserve.server.checkpoint import data_file
from neuronserve.server.checkpoint.data_file import MOST_BYTES, DataFile


def test_no_call_asks_for_more_than_every_system_reads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(0).integers(0, 256, 2500, np.uint8)
    (tmp_path / "weights").write_bytes(content.tobytes())
    asked, preadv = [], os.preadv

    def counted(descriptor: int, parts: list[memoryview], begin: int) -> int:
        asked.append(sum(part.nbytes for part in parts))
        return preadv(descriptor, parts, begin)

    monkeypatch.setattr(os, "preadv", counted)
    monkeypatch.setattr(data_file, "MOST_BYTES", 1000)
    out = np.zeros((2, 1200), np.uint8)
    DataFile(tmp_path / "weights").read_into(out, 50)
    assert np.array_equal(out.reshape(-1), content[50:2450])
    assert asked == [1000, 1000, 400]
    assert MOST_BYTES < 2**31
