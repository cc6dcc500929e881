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
        """`tensors` of each core: [tensors, blobs, bytes]."""
        self._tensors = tensors
        self._room = np.empty((sum(map(len, tensors)), tensors[0].shape[2]), np.uint8)
        self.num_bytes = self._room.size

    @classmethod
    def of(cls, pool: KVPool) -> PoolBlobs:
        """Return the blocks of a pool."""
        return cls([shard.bytes.reshape(-1, pool.num_blocks, pool.block_stride) for shard in pool.shards])

    @classmethod
    def states(cls, buffers: StateBuffers) -> PoolBlobs:
        """Return the slots of states."""
        return cls([slots.bytes.reshape(1, -1, buffers.sizes.slot) for slots in buffers.slots])

    def read(self, place: int) -> npt.NDArray[np.uint8]:
        np.concatenate([tensors[:, place] for tensors in self._tensors], out=self._room)
        return self._room.ravel()

    def write(self, place: int, content: npt.NDArray[np.uint8]) -> None:
        begin, rows = 0, content.reshape(self._room.shape)
        for tensors in self._tensors:
            tensors[:, place] = rows[begin : begin + len(tensors)]
            begin += len(tensors)
