"""Threads by the quota of control groups, from files as Linux shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronserve.server.host import cpu_quota
from neuronserve.server.host.cpu_quota import host_threads


@pytest.fixture(autouse=True)
def _many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_quota, "allowed_cpus", lambda: set(range(64)))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("limit", "threads"),
    [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("9900000 100000", 64)],
)
def test_a_pod_has_the_threads_of_its_limit(tmp_path: Path, limit: str, threads: int) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": limit + "\n"})
    assert host_threads(root) == threads


def test_the_least_limit_of_a_group_and_those_above_it_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pods/one\n",
        "sys/fs/cgroup/pods/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/pods/one/cpu.max": "800000 100000\n",
    }
    assert host_threads(write(tmp_path, files)) == 3


@pytest.mark.parametrize("folder", cpu_quota.V1_FOLDERS)
@pytest.mark.parametrize(("quota", "threads"), [("400000", 4), ("-1", 64)])
def test_the_first_version_of_control_groups(tmp_path: Path, folder: str, quota: str, threads: int) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/a\n4:cpu,cpuacct:/a\n0::/\n",
        f"{folder}/a/cpu.cfs_quota_us": quota + "\n",
        f"{folder}/a/cpu.cfs_period_us": "100000\n",
    }
    assert host_threads(write(tmp_path, files)) == threads


def test_a_host_without_control_groups_has_all_its_cpus(tmp_path: Path) -> None:
    assert host_threads(tmp_path) == 64


def test_the_slow_cores_of_a_mac_are_left_out(tmp_path: Path) -> None:
    assert host_threads(tmp_path, {"hw.perflevel0.logicalcpu": 6}.get) == 6
