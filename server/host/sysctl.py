"""Numbers that macOS tells of its host by name; a system that has no such names has none of the numbers."""

from __future__ import annotations

import ctypes


def sysctl(name: str) -> int | None:
    """The number of that name, such as hw.optional.arm.FEAT_I8MM; None where the system or the host has none."""
    read = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    value = ctypes.c_int64(0)  # an int32 fills its lower half: every Mac is little-endian
    size = ctypes.c_size_t(ctypes.sizeof(value))
    if read is None or read(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return int(value.value)
