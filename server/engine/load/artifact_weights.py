"""An artifact as the source of packed weights: pieces are read straight into the cores' memory and hashed on the way.

So there is no second copy and no unverified byte.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ...checkpoint.artifact import Artifact, Entry, core_file
from ...checkpoint.manifest import MANIFEST
from ...device.hbm import Buffer
from ...errors import CheckpointError
from ...host.regular_file import open_regular
from ...models.linear import Vector
from ...placement.matrices import PackedShape
from .weights import PackedShard, bias_name, scales_name, sums_name

CHUNK_BYTES = 1 << 20  # read at once, then hashed while it is in the CPU's cache
READERS = 2  # threads: hashing takes longer than reading from the page cache


class ArtifactWeights:
    """Reads pieces in the background; `finish` waits for them."""

    def __init__(self, artifact: Artifact) -> None:
        self._cores = artifact.cores
        self._paths = [artifact.directory / core_file(core) for core in range(len(artifact.cores))]
        self._pool = ThreadPoolExecutor(READERS, "artifact")
        self._pending: list[Future[None]] = []

    def matrix(self, shape: PackedShape, core: int, into: PackedShard) -> None:
        self._read(shape.name, core, into.tiles)
        if into.scales is not None:
            self._read(scales_name(shape), core, into.scales)
        if into.sums is not None:
            self._read(sums_name(shape), core, into.sums)

    def vector(self, vector: Vector, offset: float, core: int, into: Buffer) -> None:
        del offset  # added when the values were packed
        self._read(vector.tensor, core, into)

    def bias(self, shape: PackedShape, core: int, into: Buffer) -> None:
        self._read(bias_name(shape), core, into)

    def embedding(self, shape: PackedShape, core: int, into: Buffer) -> None:
        self._read(shape.linear.parts[0].weight, core, into)

    def finish(self) -> None:
        """Wait for all pieces. Raises CheckpointError, naming file and entry, for a piece that is damaged."""
        try:
            for pending in self._pending:
                pending.result()
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._pending.clear()

    def _read(self, name: str, core: int, into: Buffer) -> None:
        path, entry = self._paths[core], self._cores[core].get(name)
        if entry is None:
            raise CheckpointError(str(path), f"has no such entry in {MANIFEST}", name)
        if entry.num_bytes != into.num_bytes:
            raise CheckpointError(str(path), f"has {entry.num_bytes} bytes, the core takes {into.num_bytes}", name)
        self._pending.append(self._pool.submit(_read_piece, path, name, entry, into))


def _read_piece(path: Path, name: str, entry: Entry, into: Buffer) -> None:
    """Fill `into` and check the hash."""
    memory, digest, done = into.bytes.data, hashlib.sha256(), 0
    try:
        with open_regular(path) as file:
            file.seek(entry.offset)
            while done < entry.num_bytes:
                count = file.readinto(memory[done : done + CHUNK_BYTES])
                if not count:
                    raise CheckpointError(str(path), f"truncated: ends {entry.num_bytes - done} bytes early", name)
                digest.update(memory[done : done + count])
                done += count
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror}", name) from None
    if digest.hexdigest() != entry.sha256:
        raise CheckpointError(str(path), f"is damaged: SHA-256 {digest.hexdigest()}, compiled as {entry.sha256}", name)
