"""Memory that a process shares with those that it starts: a file without a name, of which nothing is left behind.

Whoever is killed cannot clean up. Linux keeps such a file in memory; elsewhere it lies where temporary ones do.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from typing import Any


class SharedFile:
    """Zeros at first. An argument of a process like a socket: the process has a descriptor of its own."""

    def __init__(self, use: str, num_bytes: int) -> None:
        """`use` names it in lists of a process's memory. Raises OSError where there is no room or descriptor for it."""
        self._fd = _without_name(f"neuronserve-{use}", num_bytes)

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

    def close(self) -> None:
        """Give up the descriptor. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _without_name(title: str, num_bytes: int) -> int:
    if sys.platform == "linux":
        fd = os.memfd_create(title)
    else:
        fd, path = tempfile.mkstemp(prefix=f"{title}-")
        os.unlink(path)
    os.ftruncate(fd, num_bytes)
    return fd
