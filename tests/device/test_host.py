"""The memory of the emulating host: what counts as available, and a refusal that cannot be taken for the part's."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.device import host
from server.device.host import SPARE_BYTES, available_bytes, host_kv_blocks, require_host_memory
from server.device.ledger import GIB
from server.errors import DeviceError, HostMemoryError, StartError


def test_the_refusal_blames_the_host_and_names_what_is_needed_and_what_there_is() -> None:
    with pytest.raises(HostMemoryError) as refusal:
        require_host_memory(30 * GIB, "llama-8b over 2 cores", 7 * GIB)
    assert str(refusal.value) == (
        "the host, not the emulated part, is too small: llama-8b over 2 cores needs 30.00 GiB of host memory "
        "and 0.50 GiB to spare; 7.00 GiB is available to this process"
    )
    assert isinstance(refusal.value, StartError)
    assert not isinstance(refusal.value, DeviceError)
    assert refusal.value.exit_code == 2


def test_what_just_fits_with_its_spare_is_accepted_and_a_byte_more_is_not() -> None:
    require_host_memory(GIB, "model", GIB + SPARE_BYTES)
    with pytest.raises(HostMemoryError):
        require_host_memory(GIB + 1, "model", GIB + SPARE_BYTES)


@given(st.integers(1, GIB), st.integers(0, 64 * GIB))
def test_kv_blocks_fill_what_the_host_has_and_keep_the_spare(block_bytes: int, available: int) -> None:
    blocks = host_kv_blocks(block_bytes, available)
    if blocks:
        require_host_memory(blocks * block_bytes, "kv", available)
    with pytest.raises(HostMemoryError):
        require_host_memory((blocks + 1) * block_bytes, "kv", available)


def test_a_host_without_its_spare_holds_no_block() -> None:
    assert host_kv_blocks(1, SPARE_BYTES) == 0
    assert host_kv_blocks(1, 0) == 0


CACHE = ("inactive_file", "active_file")
Limit = tuple[Path, Path, tuple[str, str]]


def limits(monkeypatch: pytest.MonkeyPatch, *files: Limit) -> None:
    monkeypatch.setattr(host, "_LIMITS", files)


def cgroup(folder: Path, limit: str, usage: str) -> Limit:
    files = folder / "memory.max", folder / "memory.current"
    for file, text in zip(files, (limit, usage), strict=True):
        file.write_text(text)
    return (*files, CACHE)


def test_file_cache_counts_as_free_because_the_kernel_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, cgroup(tmp_path, "3000\n", "2900\n"))
    (tmp_path / "memory.stat").write_text("anon 700\ninactive_file 1500\nactive_file 600\nslab 100\n")
    assert available_bytes() == 2200


def test_the_limit_of_the_container_counts_where_it_is_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, cgroup(tmp_path, "3000\n", "1000\n"))
    assert available_bytes() == 2000


def test_a_container_over_its_limit_has_nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, cgroup(tmp_path, "3000\n", "4000\n"))
    assert available_bytes() == 0


@pytest.mark.parametrize(
    ("limit", "usage"),
    [("max\n", "1000\n"), ("9223372036854771712\n", "1000\n"), ("3000\n", ""), ("garbage", "1")],
    ids=["unlimited-v2", "unlimited-v1", "no-usage", "unreadable"],
)
def test_without_a_limit_the_host_itself_counts(
    limit: str, usage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, cgroup(tmp_path, limit, usage))
    assert GIB // 64 < available_bytes() <= psutil.virtual_memory().total


def test_without_cgroup_files_the_host_itself_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, (tmp_path / "absent", tmp_path / "absent too", CACHE))
    assert GIB // 64 < available_bytes() <= psutil.virtual_memory().total
