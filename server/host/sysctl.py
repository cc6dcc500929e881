"""Numbers by which macOS describes its host. Other systems have none of them."""

from __future__ import annotations

import ctypes


def sysctl(name: str) -> int | None:
    """Return the number of a name such as hw.optional.arm.FEAT_I8MM; None when the system has no such name."""
    read = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    value = ctypes.c_int64(0)  # an int32 fills its lower half: every Mac is little-endian
    size = ctypes.c_size_t(ctypes.sizeof(value))
    if read is None or read(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return int(value.value)
