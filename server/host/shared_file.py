"""Memory that a process shares with its children: a file without a name, which disappears with its last user.

A process that is killed cannot clean up. Linux keeps such a file in memory; elsewhere it lies among temporary files.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd
from typing import Any

TITLE = "neuronserve-"  # prefix of the label that Linux lists such a file under; it cannot be opened by it


class SharedFile:
    """A file of zeros at first. It can be an argument of a process, which then has a descriptor of its own.

    A process that only calls `read` and `write` has it at no address, where a wild pointer could reach it.
    """

    _fd = -1  # no descriptor: it was closed, or could not be made

    def __init__(self, use: str, num_bytes: int) -> None:
        """Make a file that lists of memory show as `use`. Raises OSError without room or a descriptor for it."""
        self._fd = _without_name(TITLE + use, num_bytes)

    @classmethod
    def received(cls, sent: Any) -> SharedFile:
        """Return the file that another process has sent."""
        return cls.opened(sent.detach())

    @classmethod
    def opened(cls, descriptor: int) -> SharedFile:
        """Return a file with a name, of which the caller has opened a descriptor."""
        file = cls.__new__(cls)
        file._fd = descriptor
        return file

    def __reduce__(self) -> tuple[Callable[[Any], SharedFile], tuple[Any]]:
        return SharedFile.received, (DupFd(self._fd),)

    def map(self) -> mmap.mmap:
        """Map the whole file; the mapping outlives `close`."""
        return mmap.mmap(self._fd, 0)

    def read(self, num_bytes: int, begin: int) -> bytes:
        """Return `num_bytes` from `begin` on; fewer at the file's end."""
        return os.pread(self._fd, num_bytes, begin)

    def write(self, parts: Sequence[bytes | memoryview], begin: int) -> None:
        """Write `parts` one behind the other, from `begin` on; the file grows. Raises OSError when it cannot."""
        os.pwritev(self._fd, parts, begin)

    def clear(self) -> None:
        """Empty the file, which releases its memory."""
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Close the descriptor; the memory is released with the last one. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        self.close()


def _without_name(title: str, num_bytes: int) -> int:
    if sys.platform == "linux":
        fd = os.memfd_create(title)
    else:
        fd, path = tempfile.mkstemp(prefix=f"{title}-")
        os.unlink(path)
    os.ftruncate(fd, num_bytes)
    return fd
