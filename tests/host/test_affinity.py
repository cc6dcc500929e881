"""CPUs for worker threads: lists, physical cores first, refusals, and threads that really stay there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from neuronserve.server.errors import DeviceError, SettingsError
from neuronserve.server.host import affinity
from neuronserve.server.host.affinity import allowed_cpus, choose_cpus
from neuronserve.server.kernels.workers import WorkerPool


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The root of a host with eight CPUs, of which i and i + 4 share a core."""
    for cpu in range(8):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(affinity, "allowed_cpus", lambda: set(range(8)))
    return tmp_path


@pytest.mark.parametrize(
    ("binding", "num_threads", "cpus"),
    [
        ("none", 99, ()),
        ("auto", 3, (0, 1, 2)),
        ("auto", 6, (0, 1, 2, 3, 4, 5)),
        ("3", 1, (3,)),
        ("6-7, 0", 3, (6, 7, 0)),
        ("2-5", 2, (2, 3)),
    ],
)
def test_the_cpus_of_a_binding(eight: Path, binding: str, num_threads: int, cpus: tuple[int, ...]) -> None:
    assert choose_cpus(binding, num_threads, eight) == cpus


def test_cores_come_before_their_second_threads_among_those_allowed(
    eight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(affinity, "allowed_cpus", lambda: {1, 3, 5, 6})
    assert choose_cpus("auto", 4, eight) == (1, 3, 6, 5)
    assert choose_cpus("auto", 4, eight / "nowhere") == (1, 3, 5, 6)


def test_cores_of_one_node_follow_each_other(eight: Path) -> None:
    for node, cpus in ((0, "0,2,4,6"), (1, "1,3,5,7"), (2, "")):  # as on some hosts of two sockets; 2 is memory alone
        folder = eight / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    assert choose_cpus("auto", 8, eight) == (0, 2, 1, 3, 4, 6, 5, 7)
    assert choose_cpus("auto", 2, eight) == (0, 2)


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("", "CPUs such as 0-3,8"),
        ("0,,1", "CPUs such as 0-3,8"),
        ("3-1", "CPUs such as 0-3,8"),
        ("0-99999", "CPUs such as 0-3,8"),
        ("-1", "CPUs such as 0-3,8"),
        ("1,0-2", "names a CPU twice"),
        ("0,8", "may not use CPU 8"),
        ("0", "1 CPU(s) for 2 host threads"),
    ],
)
def test_a_binding_that_cannot_be_is_refused(eight: Path, binding: str, words: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        choose_cpus(binding, 2, eight)
    assert words in str(refusal.value)
    assert "cpu_binding is" in str(refusal.value)


@pytest.mark.parametrize("binding", ["auto", "0-1"])
def test_a_system_that_binds_no_threads_says_so(binding: str) -> None:
    with pytest.raises(SettingsError, match=rf"^cpu_binding is {binding}: this system cannot bind threads to CPUs$"):
        choose_cpus(binding, 2, can_bind=False)
    assert choose_cpus("none", 2, can_bind=False) == ()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this host does not let threads be bound")
def test_workers_stay_on_their_cpus() -> None:
    allowed, seen = sorted(allowed_cpus()), []

    def own() -> None:
        """Run in a thread of its own, because its affinity changes."""
        others = set(threading.enumerate())
        pool = WorkerPool(2)
        (worker,) = set(threading.enumerate()) - others
        for cpus in ((), (allowed[0], allowed[-1])):
            pool.bind(cpus)
            seen.append([os.sched_getaffinity(0), os.sched_getaffinity(worker.native_id or 0)])
        with pytest.raises(DeviceError, match="cannot be bound to CPU 65535"):
            pool.bind([65535])
        pool.close()

    thread = threading.Thread(target=own)
    thread.start()
    thread.join()
    assert seen == [[set(allowed)] * 2, [{allowed[0]}, {allowed[-1]}]]
