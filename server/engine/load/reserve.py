"""Room for a file on the disk before it is mapped: a disk that is full must be an error now, not a SIGBUS later."""

from __future__ import annotations

import os
from typing import BinaryIO

_BLOCK = 1 << 20


def reserve(file: BinaryIO, num_bytes: int, by_call: bool = hasattr(os, "posix_fallocate")) -> None:
    """Let the file be `num_bytes` long with every block of it on the disk. Raises OSError where there is no room.

    macOS has no posix_fallocate: the file is written instead, which takes as long as writing it does.
    """
    if by_call and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return
    zeros = bytes(_BLOCK)
    for begin in range(0, num_bytes, _BLOCK):
        file.write(zeros[: num_bytes - begin])
    file.flush()
    os.fsync(file.fileno())  # a system may take what it has no room for, and say so here
