"""Contents of KV blocks, or of states, on all cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .buffers import KVPool
from .state_buffers import StateBuffers


class PoolBlobs:
    """Blobs of a pool. Implements neuronserve.server.engine.blob_file.BlobBytes."""

    def __init__(self, tensors: Sequence[npt.NDArray[np.uint8]]) -> None:
        """`tensors` of each core, and of each model: [tensors, blobs, bytes]."""
        self._tensors = tensors
        self._room = np.empty(sum(len(each) * each.shape[2] for each in tensors), np.uint8)
        self.num_bytes = self._room.size

    @classmethod
    def of(cls, pool: KVPool) -> PoolBlobs:
        """Return the blocks of a pool."""
        return cls(pool.tensors)

    @classmethod
    def states(cls, buffers: StateBuffers) -> PoolBlobs:
        """Return the slots of states."""
        return cls([slots.bytes.reshape(1, -1, buffers.sizes.slot) for slots in buffers.slots])

    def read(self, place: int) -> npt.NDArray[np.uint8]:
        np.concatenate([tensors[:, place].ravel() for tensors in self._tensors], out=self._room)
        return self._room

    def write(self, place: int, content: npt.NDArray[np.uint8]) -> None:
        begin = 0
        for rows in (tensors[:, place] for tensors in self._tensors):
            rows[:] = content[begin : begin + rows.size].reshape(rows.shape)
            begin += rows.size
