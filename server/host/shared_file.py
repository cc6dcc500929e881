"""Memory that a process shares with those that it starts: a file without a name, of which nothing is left behind.

Whoever is killed cannot clean up. Linux keeps such a file in memory; elsewhere it lies where temporary ones do.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd
from typing import Any

TITLE = "neuronserve-"  # begins what Linux calls such a file in lists, which is no name to open it by


class SharedFile:
    """Zeros at first. An argument of a process like a socket: the process has a descriptor of its own.

    Who only reads and writes it by calls has nothing of it among its addresses, where a wild pointer could reach it.
    """

    _fd = -1  # while there is none, as where it could not be made

    def __init__(self, use: str, num_bytes: int) -> None:
        """`use` names it in lists of a process's memory. Raises OSError where there is no room or descriptor for it."""
        self._fd = _without_name(TITLE + use, num_bytes)

    @classmethod
    def received(cls, sent: Any) -> SharedFile:
        """The file that another process has sent."""
        file = cls.__new__(cls)
        file._fd = sent.detach()
        return file

    def __reduce__(self) -> tuple[Callable[[Any], SharedFile], tuple[Any]]:
        return SharedFile.received, (DupFd(self._fd),)

    def map(self) -> mmap.mmap:
        """The whole file's memory, which outlives `close`."""
        return mmap.mmap(self._fd, 0)

    def read(self, num_bytes: int, begin: int) -> bytes:
        """Bytes from `begin` on; fewer behind the file's end."""
        return os.pread(self._fd, num_bytes, begin)

    def write(self, parts: Sequence[bytes | memoryview], begin: int) -> None:
        """Write `parts` one behind the other, from `begin` on; the file grows. Raises OSError where it cannot."""
        os.pwritev(self._fd, parts, begin)

    def clear(self) -> None:
        """Give all its memory back; it is empty then."""
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Give up the descriptor, as its last user does by ending. May be called twice."""
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
