"""Threads follow the CPUs that are left, and come back with them."""

from __future__ import annotations

import pytest

from neuronserve.server.host.cpu_watch import LOOK_S, CpuWatch


@pytest.mark.parametrize(
    ("most", "num_engines", "threads"),
    [
        (8, 1, [8, 8, 3, 1, 8, 8]),
        (12, 1, [12, 12, 3, 1, 12, 12]),  # chosen beyond the CPUs: kept until some are taken away
        (2, 1, [2, 2, 2, 1, 2, 2]),
        (4, 2, [4, 4, 1, 1, 4, 4]),  # each of two engines
    ],
)
def test_threads_by_the_cpus_that_are_left(most: int, num_engines: int, threads: list[int]) -> None:
    counts = [8, 8, 3, 0, 8, 16]
    left = iter([8, *counts])
    watch, found, changes = CpuWatch(most, num_engines, lambda: next(left)), [], []
    for i in range(len(counts)):
        changes.append(watch.look(i * LOOK_S))
        assert not watch.look((i + 0.9) * LOOK_S)  # too soon: nothing is read
        found.append(watch.num_threads)
    assert found == threads
    assert changes == [now != before for before, now in zip([most, *threads], threads, strict=False)]
