"""Copies of KV blocks, or of states, in slots of a file: in memory that outlives the engine, or on a disk.

Layout: a header, the seals of all slots, and their contents. A seal has the copy's name, the token ids of its block and
a CRC-32 of model and configuration, name, token ids and content. A copy is used only if its seal is the expected one;
so one that is damaged, half written, or of another model is nothing. docs/reference/file-formats.md has the bytes.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ..clock import Clock
from ..host.shared_file import SharedFile
from ..kv_cache.hashing import Blob
from ..kv_cache.stores import Store

_FORMAT: Final = b"nskvtier"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sI16sIQQ")  # format and version; identity; bytes of token ids, of a blob; slots
_SEAL: Final = struct.Struct("<41pI")  # name; checksum. The token ids follow
_MOST_PENDING = 32  # copies that wait for a disk; while so many do, no further one is made
_SHARE = 8  # weight of the last load in the predicted time: one part of so many
_SLOWEST = 4  # times the prediction: slower loads count as if they took so long
_RELAXATION = 256
log = logging.getLogger("neuronserve.engine")


class BlobBytes(Protocol):
    """Contents of the blobs of one kind on the device."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a blob, on all cores."""
        ...

    def read(self, place: int) -> npt.NDArray[np.uint8]:
        """Return a blob's bytes, in memory that the next call may use again."""
        ...

    def write(self, place: int, content: npt.NDArray[np.uint8]) -> None:
        """Overwrite a blob with these bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Medium:
    """Kind of memory that a file is in."""

    name: str  # in the names of transfers
    bytes_per_s: float  # assumed until a load was measured
    is_slow: bool = False  # copies are written by a thread, so that no step waits for them


MEMORY = Medium("CPU", 1e9)
DISK = Medium("STORAGE", 2e8, is_slow=True)
PEER = Medium("PEER", 1e9)  # memory of another engine


@dataclass(frozen=True, slots=True)
class SlotShape:
    """Slots of a file, which begin at byte `begin` of it."""

    identity: bytes  # 16 bytes that stand for a model and a configuration
    num_slots: int
    text_bytes: int  # of a block's token ids
    blob_bytes: int
    begin: int = 0

    @property
    def seal_bytes(self) -> int:
        return _SEAL.size + self.text_bytes

    @property
    def end(self) -> int:
        return self.begin + _HEADER.size + self.num_slots * (self.seal_bytes + self.blob_bytes)

    @property
    def header(self) -> bytes:
        sizes = self.text_bytes, self.blob_bytes, self.num_slots
        return _HEADER.pack(_FORMAT, _VERSION, self.identity, *sizes)

    def seal_at(self, slot: int) -> int:
        """Position of a slot's seal."""
        return self.begin + _HEADER.size + slot * self.seal_bytes

    def content_at(self, slot: int) -> int:
        """Position of a slot's content."""
        return self.seal_at(self.num_slots) + slot * self.blob_bytes

    def seal(self, blob: Blob, content: bytes | memoryview) -> bytes:
        """Return the seal of a copy."""
        checksum = crc32(content, crc32(self.identity + blob.name + blob.text))
        return _SEAL.pack(blob.name, checksum) + blob.text


class BlobFile:
    """Implements neuronserve.server.kv_cache.tiers.Store, and Peer for the file of another engine."""

    def __init__(
        self, open_file: Callable[[], SharedFile], blobs: BlobBytes, shape: SlotShape, medium: Medium, clock: Clock
    ) -> None:
        """`open_file` is called with the first request, once the earlier engine has ended. It may raise OSError."""
        self.num_slots, self.medium, self.transfers = shape.num_slots, medium.name, dict[str, tuple[int, float]]()
        self.load_s = self._first_s = blobs.num_bytes / medium.bytes_per_s
        self._open_file, self._blobs, self._shape, self._medium, self._clock = open_file, blobs, shape, medium, clock
        self._file: SharedFile | None = None
        self._writer = ThreadPoolExecutor(1, "kv-tier") if medium.is_slow else None
        self._pending: dict[int, tuple[bytes, bytes]] = {}  # by slot: seals and contents that wait for the disk
        self._has_failed = False

    def open(self) -> Iterable[tuple[int, bytes]]:
        shape = self._shape
        try:
            if self._file is None:
                self._file = self._open_file()
            if self._file.read(_HEADER.size, shape.begin) == shape.header:
                return self._left(self._file)
            if not shape.begin:  # of another model; the slots of the first kind are used first
                self._file.clear()
            self._file.write([shape.header], shape.begin)
        except OSError as error:
            self._report(error)
        return ()

    def copies(self) -> dict[bytes, int]:
        """Return names and slots of the copies in the file of another engine, which is not written."""
        self._file = file = self._open_file()
        is_same = file.read(_HEADER.size, self._shape.begin) == self._shape.header
        return {name: slot for slot, name in self._left(file)} if is_same else {}

    def _left(self, file: SharedFile) -> Iterable[tuple[int, bytes]]:
        shape = self._shape
        seals = file.read(shape.num_slots * shape.seal_bytes, shape.seal_at(0))
        whole = range(len(seals) // shape.seal_bytes)
        names = [(slot, _SEAL.unpack_from(seals, slot * shape.seal_bytes)[0]) for slot in whole]
        return [(slot, name) for slot, name in names if name]

    def save(self, slot: int, blob: Blob, place: int) -> bool:
        begin = self._clock.now()
        content = self._blobs.read(place).data
        is_saved = self._put(slot, self._shape.seal(blob, content), content)
        if is_saved and self._writer is None:  # a thread counts its own writes
            self._count(f"GPU_to_{self._medium.name}", begin)
        return is_saved

    def move(self, slot: int, source: Store, source_slot: int) -> bool:
        record = source.raw(source_slot)
        return record is not None and self._put(slot, *record)

    def load(self, slot: int, blob: Blob, place: int) -> bool:
        begin = self._clock.now()
        record = self.raw(slot)
        if record is None or record[0] != self._shape.seal(blob, record[1]) or len(record[1]) != self._blobs.num_bytes:
            level = logging.DEBUG if self._medium is PEER else logging.WARNING  # a peer may reuse a slot at any time
            log.log(level, "a copy of KV in %s is damaged or of other tokens, and is not used", self._medium.name)
            return False
        self._blobs.write(place, np.frombuffer(record[1], np.uint8))
        seconds = self._count(f"{self._medium.name}_to_GPU", begin)
        self.load_s += (min(seconds, _SLOWEST * self.load_s) - self.load_s) / _SHARE
        return True

    def raw(self, slot: int) -> tuple[bytes, bytes] | None:
        pending, shape = self._pending.get(slot), self._shape
        if pending is not None or self._file is None:
            return pending
        try:
            seal = self._file.read(shape.seal_bytes, shape.seal_at(slot))
            return seal, self._file.read(shape.blob_bytes, shape.content_at(slot))
        except OSError as error:
            self._report(error)
            return None

    def relax(self) -> None:
        self.load_s += (self._first_s - self.load_s) / _RELAXATION

    def erase(self, slot: int) -> None:
        self._pending.pop(slot, None)
        self._later(lambda: self._write([bytes(self._shape.seal_bytes)], self._shape.seal_at(slot)))

    def clear(self) -> None:
        self._pending.clear()
        if self._file is not None:
            self._later(self._file.clear)

    def _put(self, slot: int, seal: bytes, content: bytes | memoryview) -> bool:
        if self._writer is None:
            return self._write_record(slot, seal, content)
        if len(self._pending) >= _MOST_PENDING:
            return False
        self._pending[slot] = seal, bytes(content)
        self._writer.submit(self._write_pending, slot)
        return True

    def _write_pending(self, slot: int) -> None:
        record, begin = self._pending.get(slot), self._clock.now()
        if record is not None:
            if self._write_record(slot, *record):
                self._count(f"CPU_to_{self._medium.name}", begin)
            if self._pending.get(slot) is record:  # no later copy waits for the same slot
                del self._pending[slot]

    def _write_record(self, slot: int, seal: bytes, content: bytes | memoryview) -> bool:
        """Write a copy. It has no seal while its content is written, so that one half written is nothing."""
        at = self._shape.seal_at(slot)
        is_open = self._write([bytes(len(seal))], at)
        return is_open and self._write([content], self._shape.content_at(slot)) and self._write([seal], at)

    def _write(self, parts: list[bytes | memoryview], begin: int) -> bool:
        try:
            if self._file is not None:
                self._file.write(parts, begin)
        except OSError as error:  # no room is left
            self._report(error)
            return False
        return self._file is not None

    def _later(self, write: Callable[[], object]) -> None:
        """Write in the order of calls, after the copies that wait."""
        if self._writer is None:
            write()
        else:
            self._writer.submit(write)

    def _count(self, direction: str, begin: float) -> float:
        seconds, before = self._clock.now() - begin, self.transfers.get(direction, (0, 0.0))
        self.transfers[direction] = before[0] + self._blobs.num_bytes, before[1] + seconds
        return seconds

    def _report(self, error: OSError) -> None:
        """Log the first failure; a full or broken disk makes further ones likely."""
        if not self._has_failed:
            log.warning("copies of KV in %s fail: %s", self._medium.name, error)
        self._has_failed = True
