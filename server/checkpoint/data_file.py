"""A file of weights, open for reading piece by piece at any place.

The file is not mapped: pages that were read would stay in the process beside the weights, and a file that shrinks while
it is read would end the process instead of the load.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError
from ..host.regular_file import open_regular, why_unreadable

MOST_BYTES = 1 << 30  # of one call: macOS refuses more than 2^31 - 1


class DataFile:
    """An open file of `num_bytes` bytes. Raises CheckpointError when it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open_regular(path)
        except OSError as error:
            raise CheckpointError(str(path), why_unreadable(error)) from None
        weakref.finalize(self, self._file.close)
        self._descriptor = self._file.fileno()
        self.num_bytes = os.fstat(self._descriptor).st_size

    def read_into(self, out: npt.NDArray[Any], begin: int, tensor: str | None = None) -> None:
        """Fill `out` from byte `begin` of the file, for `tensor`. Several threads may call it.

        Raises CheckpointError when the file has become shorter, or cannot be read.
        """
        memory, done = out.reshape(-1).view(np.uint8).data, 0
        try:
            while done < out.nbytes:
                count = os.preadv(self._descriptor, [memory[done : done + MOST_BYTES]], begin + done)
                if not count:
                    raise CheckpointError(str(self.path), "truncated: has become shorter while it was read", tensor)
                done += count
        except OSError as error:
            raise CheckpointError(str(self.path), f"cannot be read: {error.strerror}", tensor) from None

    def bytes_at(self, begin: int, num_bytes: int) -> bytes:
        """Return `num_bytes` bytes from byte `begin` on. Raises as `read_into`."""
        out = np.empty(num_bytes, np.uint8)
        self.read_into(out, begin)
        return out.tobytes()
