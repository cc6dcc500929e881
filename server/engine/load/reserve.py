"""Reservation of disk space for a file before it is mapped: a full disk must be an error now, not a SIGBUS later."""

from __future__ import annotations

import os
from typing import BinaryIO

_BLOCK = 1 << 20


def reserve(file: BinaryIO, num_bytes: int, by_call: bool = hasattr(os, "posix_fallocate")) -> None:
    """Extend the file to `num_bytes` with every block on the disk. Raises OSError without room.

    macOS has no posix_fallocate: zeros are written instead, which takes as long as writing the file.
    """
    if by_call and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return
    zeros = bytes(_BLOCK)
    for begin in range(0, num_bytes, _BLOCK):
        file.write(zeros[: num_bytes - begin])
    file.flush()
    os.fsync(file.fileno())  # a system may accept data without room for it, and report that here
