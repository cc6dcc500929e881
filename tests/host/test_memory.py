"""Memory of the host: the available bytes, and a refusal that cannot be mistaken for the accelerator's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.errors import DeviceError, HostMemoryError, StartError
from neuronserve.server.host.memory import (
    GIB,
    SPARE_BYTES,
    available_bytes,
    host_kv_blocks,
    num_oom_kills,
    require_host_memory,
    taken_bytes,
)
from neuronserve.server.host.shared_file import SharedFile


def test_the_refusal_blames_the_host_and_names_what_is_needed_and_what_there_is() -> None:
    with pytest.raises(HostMemoryError) as refusal:
        require_host_memory(30 * GIB, "llama-8b over 2 cores", 7 * GIB)
    assert str(refusal.value) == (
        "the host, not the emulated accelerator, is too small: llama-8b over 2 cores needs 30.00 GiB of host memory "
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


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def cgroup_v2(root: Path, group: str, limit: str, usage: str, stat: str = "") -> None:
    """A memory group of version 2 below `root`, which holds a fake /proc and /sys."""
    folder = root / "sys/fs/cgroup" / group.lstrip("/")
    for name, text in (("memory.max", limit), ("memory.current", usage), ("memory.stat", stat)):
        write(folder / name, text)


def cgroup_v1(root: Path, group: str, limit: str, usage: str, stat: str = "") -> None:
    """The same of version 1."""
    folder = root / "sys/fs/cgroup/memory" / group.lstrip("/")
    for name, text in (("limit_in_bytes", limit), ("usage_in_bytes", usage), ("stat", stat)):
        write(folder / f"memory.{name}", text)


def process_in(root: Path, *lines: str) -> None:
    write(root / "proc/self/cgroup", "".join(f"{line}\n" for line in lines))


def assert_host_counts(root: Path) -> None:
    assert GIB // 64 < available_bytes(root) <= psutil.virtual_memory().total


def test_the_limit_of_the_container_counts_where_it_is_lower(tmp_path: Path) -> None:
    process_in(tmp_path, "0::/")
    cgroup_v2(tmp_path, "/", "3000\n", "1000\n")
    assert available_bytes(tmp_path) == 2000


def test_a_container_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    process_in(tmp_path, "0::/")
    cgroup_v2(tmp_path, "/", "3000\n", "4000\n")
    assert available_bytes(tmp_path) == 0


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
@pytest.mark.parametrize("tight", ["/pod", "/pod/slice", "/pod/slice/server"])
def test_the_tightest_of_the_groups_around_the_process_counts(
    cgroup: Callable[..., None], tight: str, tmp_path: Path
) -> None:
    process_in(tmp_path, "9:name=systemd:/", "4:cpu,memory:/pod/slice/server", "0::/pod/slice/server")
    for group in ("/pod", "/pod/slice", "/pod/slice/server"):
        cgroup(tmp_path, group, "3000\n" if group == tight else "8000\n", "1000\n")
    cgroup(tmp_path, "/neighbour", "1001\n", "1000\n")
    assert available_bytes(tmp_path) == 2000


def test_a_container_that_sees_only_its_own_folder_finds_its_limit_there(tmp_path: Path) -> None:
    """Version 1 without namespaces: /proc has the host's path, the mount has the container's group as its root."""
    process_in(tmp_path, "4:memory:/docker/0123abcd")
    cgroup_v1(tmp_path, "/", "3000\n", "1000\n")
    assert available_bytes(tmp_path) == 2000


def test_a_checkpoint_in_the_file_cache_leaves_its_memory_available(tmp_path: Path) -> None:
    process_in(tmp_path, "0::/")
    cgroup_v2(tmp_path, "/", "3000\n", "2900\n", "anon 300\nfile 2600\ninactive_file 2000\nactive_file 600\n")
    assert available_bytes(tmp_path) == 3000 - 300


def test_version_1_counts_the_cache_of_the_groups_below(tmp_path: Path) -> None:
    process_in(tmp_path, "4:memory:/pod")
    stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 2000\ntotal_active_file 600\n"
    cgroup_v1(tmp_path, "/pod", "3000\n", "2900\n", stat)
    assert available_bytes(tmp_path) == 3000 - 300


def test_cache_counted_a_moment_later_than_usage_makes_no_memory(tmp_path: Path) -> None:
    process_in(tmp_path, "0::/")
    cgroup_v2(tmp_path, "/", "3000\n", "100\n", "inactive_file 200\n")
    assert available_bytes(tmp_path) == 3000


@pytest.mark.parametrize(
    ("limit", "usage"),
    [("max\n", "1000\n"), ("9223372036854771712\n", "1000\n"), ("3000\n", ""), ("garbage", "1")],
    ids=["unlimited-v2", "unlimited-v1", "no-usage", "unreadable"],
)
def test_without_a_limit_the_host_itself_counts(limit: str, usage: str, tmp_path: Path) -> None:
    process_in(tmp_path, "0::/")
    cgroup_v2(tmp_path, "/", limit, usage)
    assert_host_counts(tmp_path)


def test_without_control_groups_the_host_itself_counts(tmp_path: Path) -> None:
    assert_host_counts(tmp_path)


def test_the_real_host_has_memory() -> None:
    assert 0 < available_bytes() <= psutil.virtual_memory().total


def test_oom_kills_are_those_of_the_nearest_group_that_can_be_seen(tmp_path: Path) -> None:
    assert num_oom_kills(tmp_path) == 0
    write(tmp_path / "proc/self/cgroup", "0::/pod/container\n")
    write(tmp_path / "sys/fs/cgroup/pod/memory.events", "oom 9\noom_kill 8\noom_group_kill 0\n")
    assert num_oom_kills(tmp_path) == 8
    write(tmp_path / "sys/fs/cgroup/pod/container/memory.events", "oom 2\noom_kill 1\noom_group_kill 7\n")
    assert num_oom_kills(tmp_path) == 1


def test_oom_kills_of_the_first_version_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/docker/1\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert num_oom_kills(tmp_path) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they are on the disk")
def test_files_without_a_name_count_though_nobody_maps_them() -> None:
    before = taken_bytes(os.getpid())
    file = SharedFile("test", 0)
    file.write([bytes(64 << 20)], 0)
    whole = taken_bytes(os.getpid())
    file.clear()
    assert whole - taken_bytes(os.getpid()) >= 60 << 20
    assert whole - before >= 60 << 20
