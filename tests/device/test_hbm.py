"""The mappings that stand for cores' memory, as the host sees them."""

from __future__ import annotations

import os
import subprocess

import psutil

from server.device.hbm import Hbm


def test_a_process_with_more_memory_mapped_than_the_host_has_can_start_others() -> None:
    cores = [Hbm(psutil.virtual_memory().total) for _ in range(4)]
    done = subprocess.run(["true"], preexec_fn=os.getpid, check=False)  # which forks, where vfork would do otherwise
    assert done.returncode == 0
    assert all(core.used_bytes == 0 for core in cores)
