"""The host that runs the emulation: how much memory it can really give, and the refusal when that is too little."""

from __future__ import annotations

from pathlib import Path

import psutil

from server.device.ledger import GIB
from server.errors import HostMemoryError

_CGROUP_V2 = Path("/sys/fs/cgroup")
_CGROUP_V1 = Path("/sys/fs/cgroup/memory")
_LIMITS = (  # limit, usage, and the counters of file cache in memory.stat, which the kernel gives back when asked
    (_CGROUP_V2 / "memory.max", _CGROUP_V2 / "memory.current", ("inactive_file", "active_file")),
    (
        _CGROUP_V1 / "memory.limit_in_bytes",
        _CGROUP_V1 / "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
SPARE_BYTES = GIB // 2  # left to the API process, the kernel and the file cache


def _number(path: Path) -> int | None:
    """The number in a cgroup file; None when there is no such file or no limit ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _counters(path: Path, names: tuple[str, ...]) -> int:
    """Sum of the named lines of a memory.stat file; 0 without one."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(value) for name, value in lines if name in names)


def available_bytes() -> int:
    """Memory this process can still take: what the host has free, or its container's limit where that is less."""
    least: int = psutil.virtual_memory().available
    for limit_file, usage_file, cache_counters in _LIMITS:
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None:
            used = usage - _counters(limit_file.with_name("memory.stat"), cache_counters)
            least = min(least, max(0, limit - used))
    return least


def require_host_memory(needed_bytes: int, what: str, available: int) -> None:
    """Raises HostMemoryError when `what` needs more than the host has `available`; both in bytes."""
    if needed_bytes + SPARE_BYTES > available:
        raise HostMemoryError(
            f"the host, not the emulated part, is too small: {what} needs {needed_bytes / GIB:.2f} GiB of host memory "
            f"and {SPARE_BYTES / GIB:.2f} GiB to spare; {available / GIB:.2f} GiB is available to this process"
        )


def host_kv_blocks(block_bytes: int, available: int) -> int:
    """KV blocks of `block_bytes` (over all cores) that fit in what the host has left."""
    return max(0, available - SPARE_BYTES) // block_bytes
