"""Reads from the cache only files that no other user can have written: kernels there are pickles, which can run code.

The check is made on the opened file, so replacing the file afterwards changes nothing.
"""

from __future__ import annotations

import errno
import os
from typing import IO, Any

from numba.core import caching

from ...host.private_file import is_trusted


def use_trusted_files_alone() -> None:
    """Make Numba treat a file that others may have written as missing, and compile."""
    caching.open = _open


def _open(path: str, mode: str) -> IO[Any]:
    return open(path, mode, opener=_trusted if "r" in mode else None)


def _trusted(path: str, flags: int) -> int:
    descriptor = os.open(path, flags)
    if is_trusted(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "another user may have written it", path)
