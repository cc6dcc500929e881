"""The mappings that stand for cores' memory, as the host sees them."""

from __future__ import annotations

import mmap
import os
import subprocess
from itertools import pairwise

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.device.core import HOST_USES, MAPPING_BYTES, HostUse, NeuronCore
from neuronserve.server.device.hbm import ALIGNMENT, Hbm, give_back
from neuronserve.server.host.memory import taken_bytes

MIB = 1 << 20


@pytest.mark.parametrize("by_advice", [True, False])
def test_whole_pages_that_are_given_back_are_the_hosts_and_read_as_zeros(by_advice: bool) -> None:
    piece = Hbm(64 * MIB).allocate(32 * MIB).bytes
    piece[:] = 1
    full = taken_bytes(os.getpid())
    assert give_back(piece[1 : 16 * MIB + 1], by_advice) == 16 * MIB - mmap.PAGESIZE
    assert full - taken_bytes(os.getpid()) >= 15 * MIB
    assert piece[: mmap.PAGESIZE].all()
    assert not piece[mmap.PAGESIZE : 16 * MIB].any()
    assert piece[16 * MIB :].all()
    piece[8 * MIB] = 7
    assert piece[8 * MIB] == 7


def test_a_process_with_more_memory_mapped_than_the_host_has_can_start_others() -> None:
    cores = [Hbm(psutil.virtual_memory().total) for _ in range(4)]
    done = subprocess.run(["true"], preexec_fn=os.getpid, check=False)  # which forks, where vfork would do otherwise
    assert done.returncode == 0
    assert all(core.used_bytes == 0 for core in cores)


@given(st.lists(st.tuples(st.sampled_from(HOST_USES), st.integers(0, 3 * MAPPING_BYTES // 2)), max_size=8))
def test_a_core_hands_out_zeroed_pieces_that_lie_apart_and_counts_them(asked: list[tuple[HostUse, int]]) -> None:
    core = NeuronCore(0)
    pieces = [core.allocate(use, "piece", num_bytes) for use, num_bytes in asked]
    spans = sorted((piece.address, piece.address + piece.num_bytes) for piece in pieces if piece.num_bytes)
    assert all(begin % ALIGNMENT == 0 for begin, _ in spans)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    for use in HOST_USES:
        wanted = [num_bytes for each, num_bytes in asked if each == use]
        assert sum(wanted) <= core.used[use] < sum(wanted) + ALIGNMENT * (len(wanted) + 1)
    for piece in pieces:
        assert not piece.bytes[:: 1 << 24].any()
