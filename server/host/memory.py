"""Memory of the host: what is available, what processes have taken, and the refusal when it is too little."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

from ..errors import HostMemoryError
from .shared_file import TITLE

GIB = 2**30

SPARE_BYTES = GIB // 2  # left to the API process, the kernel and the file cache


@dataclass(frozen=True, slots=True)
class _Controller:
    """Memory files of one version of Linux control groups (kernel docs: cgroup-v1/memory, cgroup-v2)."""

    folder: str  # below the root of the file system
    limit: str
    usage: str  # of the group and those below it, file cache included
    cache: tuple[str, ...]  # lines of memory.stat: file cache that the kernel drops before it runs out
    events: str  # file with the line "oom_kill N": processes that were killed because the group ran out


_V1 = _Controller(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
    "memory.oom_control",
)
_V2 = _Controller("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file"), "memory.events")


def available_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still take: the host's free memory, or less in a container with a limit.

    A checkpoint that was just read is in the file cache and counts as free: the kernel drops it when memory is needed.
    `root` is the root of the file system that holds /proc and /sys.
    """
    least: int = psutil.virtual_memory().available
    for controller, folder in _groups(root):
        left = _left(controller, folder)
        least = least if left is None else min(least, left)
    return least


def limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the least limit of the memory groups of this process; None without one."""
    texts = (_text(folder / controller.limit).strip() for controller, folder in _groups(root))
    limits = [int(text) for text in texts if text.isdecimal()]  # no limit is the word "max", or more than any host has
    return min((limit for limit in limits if limit < psutil.virtual_memory().total), default=None)


def taken_bytes(pid: int, by_proc: bool = sys.platform == "linux") -> int:
    """Return the bytes that a process and its descendants have written, without the files that they map.

    Memory files (shared_file.py) that it has open count too, mapped or not. Without /proc the unique set size is taken,
    which includes pages of files that no other process maps. Pages that a process shares with the process it was forked
    from, and never wrote, count for both.
    """
    if by_proc:
        return sum(map(written_bytes, _family(pid))) + _file_bytes(pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        own = psutil.Process(pid)
        return sum(map(_unique_bytes, (own, *own.children(recursive=True))))
    return 0


def _family(pid: int) -> list[int]:
    """Return a process and its descendants without reading every process of the host, as psutil does."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(each for file in files for child in _text(file).split() for each in _family(int(child)))]


def _unique_bytes(process: psutil.Process) -> int:
    """Return the unique set size, or the resident size on a system that reports the former to root alone (macOS)."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.AccessDenied:
        return int(process.memory_info().rss)


def written_bytes(pid: int) -> int:
    """Return the bytes that a process has written, from /proc; 0 when it has ended."""
    lines = (line.split() for line in _text(Path(f"/proc/{pid}/status")).splitlines())
    return sum(int(line[1]) * 1024 for line in lines if line and line[0] in {"RssAnon:", "RssShmem:"})


def _file_bytes(pid: int) -> int:
    """Bytes of the memory files that a process has open (server/host/shared_file.py), each once."""
    found: dict[int, int] = {}
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(link.readlink()).startswith(f"/memfd:{TITLE}"):
                status = link.stat()
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def return_freed_memory() -> None:
    """Return the memory that this process has freed to the host. Does nothing without glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def num_oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes of this memory group the OOM killer has ended; 0 when no group reports it."""
    texts = (_text(folder / controller.events) for controller, folder in _groups(root))
    nearest = next(filter(None, texts), "")  # of the groups that are visible; those above count other processes too
    return sum(int(line.split()[1]) for line in nearest.splitlines() if line.startswith("oom_kill "))


def _groups(root: Path) -> Iterator[tuple[_Controller, Path]]:
    """Yield the memory groups of this process and all their parents; any of them may set a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        controller = _V1 if "memory" in names.split(",") else _V2
        if controller is _V1 or not names:
            own = PurePosixPath(path)
            for group in (own, *own.parents):
                yield controller, root / controller.folder / str(group).lstrip("/")


def _left(controller: _Controller, folder: Path) -> int | None:
    """Return the bytes that a group may still take; None when it has no limit or is invisible in a container."""
    limit, usage = _text(folder / controller.limit).strip(), _text(folder / controller.usage).strip()
    if not (limit.isdecimal() and usage.isdecimal()):  # no limit is the word "max"
        return None
    stat = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines())
    cache = sum(int(stat.get(name, 0)) for name in controller.cache)
    return max(0, int(limit) - max(0, int(usage) - cache))


def _text(path: Path) -> str:
    """Return the text of a file of /proc or /sys; empty when there is none, as without control groups."""
    try:
        return path.read_text()
    except OSError:
        return ""


def require_host_memory(needed_bytes: int, purpose: str, available: int) -> None:
    """Raise HostMemoryError when `purpose` needs more than the host has `available`; both in bytes."""
    if needed_bytes + SPARE_BYTES > available:
        raise HostMemoryError(
            f"the host, not the emulated accelerator, is too small: {purpose} needs {needed_bytes / GIB:.2f} GiB of "
            f"host memory and {SPARE_BYTES / GIB:.2f} GiB to spare; "
            f"{available / GIB:.2f} GiB is available to this process"
        )


def host_kv_blocks(block_bytes: int, available: int) -> int:
    """Return the number of KV blocks of `block_bytes` (over all cores) that fit in the available host memory."""
    return max(0, available - SPARE_BYTES) // block_bytes
