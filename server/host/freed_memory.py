"""Memory that a process has freed and its C library keeps."""

from __future__ import annotations

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Give the host back what has been freed. Does nothing where the C library is not glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
