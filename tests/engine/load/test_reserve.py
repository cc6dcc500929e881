"""Room on a disk is taken before a file is mapped, by the system's call or by writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronserve.server.engine.load.artifact_writer import reserve

WAYS = [True, False]


@pytest.mark.parametrize("by_call", WAYS)
@pytest.mark.parametrize("num_bytes", [1, 3 << 20, (1 << 20) + 17])
def test_every_block_is_on_the_disk(tmp_path: Path, by_call: bool, num_bytes: int) -> None:
    path = tmp_path / "core"
    with path.open("wb+") as file:
        reserve(file, num_bytes, by_call)
    assert path.stat().st_size == num_bytes
    assert path.stat().st_blocks * 512 >= num_bytes
    assert not any(path.read_bytes())


@pytest.mark.parametrize("by_call", WAYS)
def test_a_full_disk_is_an_error(by_call: bool) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no device that is always full")
    with full.open("rb+", buffering=0) as file, pytest.raises(OSError, match=r"\S"):
        reserve(file, 1 << 20, by_call)
