"""Tiers over files in memory, for tests of the books: bytes are real, seconds are not."""

from __future__ import annotations

from collections.abc import Sequence

from neuronserve.server.clock import ManualClock
from neuronserve.server.engine.blob_file import PEER, BlobBytes, BlobFile, Medium, SlotShape
from neuronserve.server.host.shared_file import SharedFile
from neuronserve.server.kv_cache.blocks import BlockPool
from neuronserve.server.kv_cache.tiers import PrefillRate, Tiers

TOKEN_S = 1.0  # far more than any load
IDENTITY = b"0123456789abcdef"


def press(pool: BlockPool, count: int) -> None:
    """Make the device forget what is cached in the first free blocks."""
    for block in [pool.take() for _ in range(min(count, pool.num_free))]:
        pool.release(block)


class TestedTiers:
    """Tiers whose files can be damaged."""

    __test__ = False

    def __init__(self, blobs: BlobBytes, block_size: int, num_slots: Sequence[int], num_mirrors: int = 0) -> None:
        self.files = [SharedFile("test", 0) for _ in num_slots]
        stores = []
        for level, (file, slots) in enumerate(zip(self.files, num_slots, strict=True)):
            shape, medium = SlotShape(IDENTITY, slots, 4 * block_size, blobs.num_bytes), Medium(f"tier{level}", 1e9)
            stores.append(BlobFile(lambda file=file: file, blobs, shape, medium, ManualClock()))  # type: ignore[misc]
        self.tiers = Tiers(stores, PrefillRate(TOKEN_S), num_mirrors)
        self._blobs, self._shape = blobs, SlotShape(IDENTITY, num_slots[0], 4 * block_size, blobs.num_bytes)

    def follow(self, other: TestedTiers) -> None:
        """Read the copies that another engine has in its first file."""
        self.tiers.peers = [BlobFile(lambda: other.files[0], self._blobs, self._shape, PEER, ManualClock())]

    def damage(self, level: int, at: int) -> None:
        """Flip a bit in some bytes of a file from `at` on; 0 empties it."""
        file = self.files[level % len(self.files)]
        if not at:
            file.clear()
        for place in range(at, len(file.read(1 << 16, 0)), 23):
            file.write([bytes([file.read(1, place)[0] ^ 1])], place)
