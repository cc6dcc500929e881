"""Host memory that stands in for a NeuronCore's memory: a mapping whose pages take memory when they are written."""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import HostMemoryError
from ..host.address_map import ADDRESSES

ALIGNMENT = 64  # a cache line: tile rows that straddle two cost half the speed
_HUGE_PAGE = 2 << 20

# MAP_NORESERVE: Linux does not count a mapping before it is written, so a process with a few large ones can fork.
# Python 3.11 has no name for the flag; the number is the one of Linux on x86-64 and ARM.
_FLAGS = (
    mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
)
_MAP_FIXED = 0x10  # on Linux and macOS; Python has no name for it


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of a core's memory."""

    bytes: npt.NDArray[np.uint8]

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    @property
    def num_bytes(self) -> int:
        return int(self.bytes.size)

    def array(self, dtype: npt.DTypeLike, *shape: int) -> npt.NDArray[Any]:
        """Return the memory as an array. Raises ValueError when the shape needs another size."""
        return self.bytes.view(dtype).reshape(shape)


def give_back(memory: npt.NDArray[np.uint8], by_advice: bool = sys.platform == "linux") -> int:
    """Return the whole pages of a piece of a core's memory to the host. They read as zeros until written again.

    Linux frees the pages on advice. macOS takes the advice but keeps the bytes, so new pages are mapped in their place.
    Returns the number of bytes, 0 if the host does not take them.
    """
    begin = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    num_bytes = (memory.ctypes.data + memory.size) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if num_bytes <= 0:
        return 0
    libc, address, size = ctypes.CDLL(None), ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes)
    if by_advice:
        return 0 if libc.madvise(address, size, mmap.MADV_DONTNEED) else num_bytes
    libc.mmap.restype = ctypes.c_void_p
    protection, offset = mmap.PROT_READ | mmap.PROT_WRITE, ctypes.c_longlong(0)
    mapped = libc.mmap(address, size, protection, _FLAGS | _MAP_FIXED, -1, offset)
    return num_bytes if mapped == begin else 0


class Hbm:
    """Bump allocator over one private anonymous mapping. The mapping is freed as a whole."""

    def __init__(self, num_bytes: int) -> None:
        try:
            self._map = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=_FLAGS)
        except (OSError, ValueError, OverflowError) as error:
            raise HostMemoryError(f"the host cannot map {num_bytes} bytes for one emulated core: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(self._map, np.uint8)
        skip = -whole.ctypes.data % _HUGE_PAGE
        self._bytes = whole[skip : skip + num_bytes]
        self._used = 0

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def free_bytes(self) -> int:
        """Bytes of the largest allocation that is still possible."""
        return int(self._bytes.size) - self._next

    @property
    def _next(self) -> int:
        """Offset of the next allocation."""
        return -(-self._used // ALIGNMENT) * ALIGNMENT

    def allocate(self, num_bytes: int, name: str = "core memory") -> Buffer:
        """Allocate zeroed bytes, aligned to a cache line. Raises ValueError when the mapping has too few."""
        begin = self._next
        if begin + num_bytes > self._bytes.size:
            raise ValueError(f"cannot allocate {num_bytes} bytes: {self._bytes.size - begin} are mapped and free")
        self._used = begin + num_bytes
        buffer = Buffer(self._bytes[begin : begin + num_bytes])
        ADDRESSES.register(name, buffer.bytes)
        return buffer
