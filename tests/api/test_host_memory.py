"""Thresholds of the host's free memory, and the processes that count as the server's."""

from __future__ import annotations

import mmap
import os

import psutil
import pytest

from neuronserve.server.api.host_memory import ENOUGH_BYTES, RELEASE_LOOKS, SHORT_BYTES, HostMemory
from neuronserve.server.errors import Overloaded
from neuronserve.server.host.memory import taken_bytes

MIB = 2**20


def test_requests_are_taken_until_memory_is_short_and_again_once_there_is_enough() -> None:
    memory = HostMemory(None, lambda: None)
    for left, is_short in [
        (SHORT_BYTES, False),
        (SHORT_BYTES - 1, True),
        (ENOUGH_BYTES - 1, True),  # no flicker
        (ENOUGH_BYTES, False),
        (SHORT_BYTES, False),
        (-1, True),
    ]:
        memory.look(left)
        assert (memory.is_short, memory.left_bytes) == (is_short, left)
        if not is_short:
            memory.check()
    with pytest.raises(Overloaded, match=r"short of memory: 0 MiB are left") as refusal:
        memory.check()
    assert (refusal.value.status, refusal.value.code, refusal.value.retry_after_s) == (429, "host_memory", 5)


def test_caches_are_emptied_before_requests_are_refused_and_not_at_every_look() -> None:
    releases: list[int] = []
    memory = HostMemory(None, lambda: releases.append(memory.left_bytes))
    memory.look(ENOUGH_BYTES)
    assert releases == []
    memory.look(ENOUGH_BYTES - 1)
    assert releases == [ENOUGH_BYTES - 1]
    memory.check()
    for _ in range(RELEASE_LOOKS):
        memory.look(SHORT_BYTES)
    assert releases == [ENOUGH_BYTES - 1, SHORT_BYTES]
    memory.look(ENOUGH_BYTES)
    memory.look(0)
    assert releases[2:] == [0]


@pytest.mark.parametrize("by_proc", [True, False])
def test_what_a_process_has_written_counts_and_what_it_has_only_mapped_does_not(by_proc: bool) -> None:
    before = taken_bytes(os.getpid(), by_proc)
    with mmap.mmap(-1, 256 * MIB) as mapped:
        assert taken_bytes(os.getpid(), by_proc) - before < 128 * MIB
        mapped.write(b"\1" * (256 * MIB))
        assert taken_bytes(os.getpid(), by_proc) - before > 240 * MIB  # the rest of the process may give some back
    assert taken_bytes(2**22 + 1, by_proc) == 0  # above every pid


def test_what_is_resident_counts_where_only_root_is_told_what_is_a_processs_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def denied(_: psutil.Process) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "memory_full_info", denied)
    with mmap.mmap(-1, 256 * MIB) as mapped:
        before = taken_bytes(os.getpid(), by_proc=False)
        mapped.write(b"\1" * (256 * MIB))
        assert taken_bytes(os.getpid(), by_proc=False) - before > 240 * MIB
