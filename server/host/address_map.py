"""Named ranges of this process's memory that kernels may access. The checked mode compares every access with them.

Code that allocates memory for kernels registers it; a range ends with its memory. Ranges are disjoint or nested, such
as one layer's keys in the memory of the whole cache.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class AddressRange:
    """Addresses begin <= a < end."""

    name: str
    begin: int
    end: int
    is_indirect: bool = False  # kernels find its address in memory, not in an operand or the step record


class AddressMap:
    """Named ranges of memory."""

    def __init__(self) -> None:
        self._ranges: dict[int, AddressRange] = {}
        self._num_entered = 0
        self.version = 0  # changes whenever a range is entered or forgotten
        self._sorted: tuple[int, list[AddressRange]] = (0, [])  # as of that version

    def register(self, name: str, memory: npt.NDArray[Any], is_indirect: bool = False) -> None:
        """Enter `memory`, an array without gaps, for as long as the array that owns its bytes lives."""
        if memory.nbytes == 0:
            return
        owner = memory
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        key, begin = self._num_entered, int(memory.ctypes.data)
        self._ranges[key] = AddressRange(name, begin, begin + memory.nbytes, is_indirect)
        self._num_entered += 1
        self.version += 1
        weakref.finalize(owner, self._forget, key).atexit = False

    def register_attributes(self, name: str, holder: object) -> None:
        """Enter each array that is an attribute of `holder`."""
        for attribute, value in vars(holder).items():
            if isinstance(value, np.ndarray):
                self.register(f"{name} {attribute.lstrip('_')}", value)

    def _forget(self, key: int) -> None:
        del self._ranges[key]
        self.version += 1

    @property
    def ranges(self) -> list[AddressRange]:
        """All of them, in order; a range comes before those inside it."""
        version = self.version
        if self._sorted[0] != version:
            self._sorted = version, sorted(self._ranges.values(), key=lambda each: (each.begin, -each.end))
        return self._sorted[1]

    def find(self, address: int) -> AddressRange | None:
        """The innermost range that holds `address`."""
        ranges = self.ranges
        for i in range(bisect_right(ranges, address, key=lambda each: each.begin) - 1, -1, -1):
            if address < ranges[i].end:
                return ranges[i]
        return None


ADDRESSES = AddressMap()  # of this process
