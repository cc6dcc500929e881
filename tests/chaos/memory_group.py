"""A memory control group of its own for a server under test, and a neighbour in it that takes what is left.

Needs the right to make groups: root, with the memory controller mounted (version 1) or delegated (version 2).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.api.serving import is_running, until

CHUNK = 8 * 2**20
ROOM = 32 * 2**20  # that the neighbour finds
# Takes memory until the group has killed somebody for it. The engine goes first: it is larger and offers itself more,
# even where files' pages give way and this one gets several times its room. While the engine's memory is not free yet
# the kernel may take another process: this one, rather than the API's.
NEIGHBOUR = f"""
import sys, time, pathlib
pathlib.Path("/proc/self/oom_score_adj").write_text("300")
events = pathlib.Path(sys.argv[1])
kills = lambda: [line for line in events.read_text().splitlines() if line.startswith("oom_kill ")]
before, taken = kills(), []
while kills() == before:
    taken.append(b"\\1" * {CHUNK})
    time.sleep(0.001)
time.sleep(3600)
"""


@dataclass(frozen=True)
class MemoryGroup:
    """A control group; its files are named by their use."""

    folder: Path
    limit: Path
    usage: Path
    events: Path
    unlimited: str

    @property
    def under(self) -> Sequence[str]:
        """A command that runs the rest of its arguments in the group."""
        return ("/bin/sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh")

    def run_out(self, pid: int) -> None:
        """Have the group run out of memory until the kernel has killed process `pid` for it."""
        self.limit.write_text(str(int(self.usage.read_text()) + ROOM))
        with subprocess.Popen([*self.under, sys.executable, "-c", NEIGHBOUR, str(self.events)]) as neighbour:
            try:
                until(lambda: not is_running(pid))
            finally:
                self.limit.write_text(self.unlimited)
                neighbour.kill()


@contextlib.contextmanager
def memory_group(name: str = "chaos") -> Iterator[MemoryGroup]:
    """A group below that of this process; the test is skipped where none can be made."""
    group = _below_own(name)
    if group is None:
        pytest.skip("no memory control group can be made here: it takes root and a writable memory controller")
    try:
        yield group
    finally:
        until(lambda: not (group.folder / "cgroup.procs").read_text())  # the server's children end after it
        group.folder.rmdir()


def _below_own(of: str) -> MemoryGroup | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        name = f"neuronserve-{of}-{os.getpid()}"
        if "memory" in controllers.split(","):
            folder = Path("/sys/fs/cgroup/memory") / path.strip("/") / name
            found = MemoryGroup(
                folder,
                folder / "memory.limit_in_bytes",
                folder / "memory.usage_in_bytes",
                folder / "memory.oom_control",
                "-1",
            )
        elif not controllers:
            folder = Path("/sys/fs/cgroup") / path.strip("/") / name
            found = MemoryGroup(
                folder, folder / "memory.max", folder / "memory.current", folder / "memory.events", "max"
            )
        else:
            continue
        with contextlib.suppress(OSError):
            folder.mkdir()
            if found.limit.exists():
                return found
            folder.rmdir()
    return None
