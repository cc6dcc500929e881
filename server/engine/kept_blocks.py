"""Copies of whole KV blocks in memory that outlives the engine, so that its successor need not compute them again.

A block is copied when it is named, between two steps. It is found by its name, which covers the tokens, salt and
adapter that it was computed from. Each copy has a seal: model and configuration, its name and a checksum of its bytes.
A copy without a whole seal of the same model and configuration is ignored.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ..config import EngineConfig
from ..host.shared_file import SharedFile
from ..kv_cache.blocks import BlockPool
from ..kv_cache.manager import KVCacheManager
from ..link.messages import EngineInfo
from ..types import Request
from .buffers import most_kept

_SEAL: Final = struct.Struct("=16s40pQ")  # model and configuration; name; checksum
log = logging.getLogger("neuronserve.engine")
_LOOKS = 8  # oldest copies that are considered for eviction


class BlockBytes(Protocol):
    """The contents of KV blocks."""

    num_bytes: int  # of a block on all cores; a multiple of 8

    def read(self, block: int) -> npt.NDArray[np.uint8]:
        """Return a block's bytes, in memory that the next call may use again."""
        ...

    def write(self, block: int, content: npt.NDArray[np.uint8]) -> None:
        """Overwrite a block with these bytes."""
        ...


def model_files(path: str) -> tuple[tuple[str, int, int, int], ...]:
    """Name, size, time and inode of each file of a model; they differ when the model does."""
    found = Path(path)
    files = sorted(found.rglob("*")) if found.is_dir() else [found] if found.exists() else []
    stats = ((str(file), file.stat()) for file in files if file.is_file())
    return tuple((name, each.st_size, each.st_mtime_ns, each.st_ino) for name, each in stats)


def kept_blocks(
    file: SharedFile,
    blocks: BlockBytes | None,
    config: EngineConfig,
    info: EngineInfo,
    files: tuple[tuple[str, int, int, int], ...],
) -> KeptBlocks | None:
    """Return the copies of an engine, None when it keeps none. `files` are the model's, as they were before loading."""
    if blocks is None or not info.cache.enable_prefix_caching or info.cache.num_states:
        return None  # blocks are of no use without the states of the same prefixes, which are not kept
    most = most_kept(config, info.facts.num_params, blocks.num_bytes)
    same = replace(
        config, num_blocks_override=None, threads_alone=None
    )  # may differ between an engine and its successor
    identity = sha256(repr((same, files, info.facts.weights, blocks.num_bytes)).encode()).digest()[:16]
    return KeptBlocks(file, blocks, identity, most) if most >= blocks.num_bytes else None


class KeptBlocks:
    """Copies that an engine and its successors share. An engine may use them only after the earlier one has ended.

    So nothing is read or written before the first request comes, which is when an engine takes over.
    """

    def __init__(self, file: SharedFile, blocks: BlockBytes, identity: bytes, most_bytes: int) -> None:
        self._file, self._blocks, self._identity = file, blocks, identity
        self._slot_bytes = _SEAL.size + blocks.num_bytes
        self._most_slots, self._num_slots = most_bytes // self._slot_bytes, 0  # limit and size of the file
        self._slots: dict[bytes, int] = {}  # by name, oldest first
        self._free: list[int] = []  # slots of the file without a copy
        self.has_inherited = False  # the earlier engine has left copies

    def take_over(self) -> None:
        """Find the copies that the earlier engine has left."""
        while len(seal := self._file.read(_SEAL.size, self._num_slots * self._slot_bytes)) == _SEAL.size:
            identity, name, _ = _SEAL.unpack(seal)
            if identity == self._identity and name not in self._slots:
                self._slots[name] = self._num_slots
            else:
                self._free.append(self._num_slots)
            self._num_slots += 1
        self.has_inherited = bool(self._slots)

    def __contains__(self, name: bytes) -> bool:
        return name in self._slots

    def keep(self, name: bytes, block: int, pool: BlockPool) -> None:
        """Copy a whole block, unless the oldest copies are of blocks that sequences hold, which are needed sooner."""
        if name in self._slots:
            return
        slot = self._slot(pool)
        if slot is not None:
            content = self._blocks.read(block)
            seal = _SEAL.pack(self._identity, name, _checksum(name, content))
            try:
                self._file.write([seal, content.data], slot * self._slot_bytes)
            except OSError:  # no room is left in memory, or on the disk that stands in for it
                self._free.append(slot)
            else:
                self._slots[name] = slot

    def restore(self, name: bytes, block: int) -> bool:
        """Copy the content of that name back into a block; return False when the copy is not whole."""
        whole = self._file.read(self._slot_bytes, self._slots[name] * self._slot_bytes)
        is_whole = len(whole) == self._slot_bytes and self._is_sealed(name, whole)
        if is_whole:
            self._blocks.write(block, np.frombuffer(whole, np.uint8, offset=_SEAL.size))
        else:
            self.forget(name)
        return is_whole

    def _is_sealed(self, name: bytes, whole: bytes) -> bool:
        checksum = _checksum(name, np.frombuffer(whole, np.uint8, offset=_SEAL.size))
        return _SEAL.unpack_from(whole) == (self._identity, name, checksum)

    def forget(self, name: bytes) -> None:
        """Drop a copy."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._file.write([bytes(_SEAL.size)], slot * self._slot_bytes)
            self._free.append(slot)

    def clear(self) -> None:
        """Drop all copies and release their memory."""
        self._slots, self._free, self._num_slots = {}, [], 0
        self._file.clear()

    def _slot(self, pool: BlockPool) -> int | None:
        """Return a slot for a new copy, None when there is none."""
        if self._free:
            return self._free.pop()
        if self._num_slots < self._most_slots:
            self._num_slots += 1
            return self._num_slots - 1
        for name in list(islice(self._slots, _LOOKS)):  # the oldest
            slot = self._slots.pop(name)
            if not pool.is_held(name):
                return slot
            self._slots[name] = slot
        return None


def _checksum(name: bytes, content: npt.NDArray[np.uint8]) -> int:
    """Checksum of the name and the bytes as words; it changes with any single word."""
    return (int(np.add.reduce(content.view(np.uint64))) + int.from_bytes(name[:8], "little")) % 2**64


class Restorer:
    """Restores the blocks of resumed sequences before they are scheduled (an Observer of the inbox).

    Sequences without a generated token are left alone: `num_cached_tokens` of their events counts this engine's hits.
    """

    def __init__(self, kept: KeptBlocks, cache: KVCacheManager) -> None:
        self._kept, self._cache = kept, cache
        self._serves = False  # since the first request, which comes when the earlier engine has ended

    def observe(self, requests: Sequence[Request]) -> None:
        if not self._serves:
            self._serves = True
            self._kept.take_over()
        if self._kept.has_inherited:
            num_blocks = sum(map(self._restore, requests))
            if num_blocks:
                log.info("restored %d KV blocks of the earlier engine", num_blocks)

    def _restore(self, request: Request) -> int:
        if not request.generated_token_ids:
            return 0
        known = (*request.prompt_token_ids, *request.generated_token_ids)
        return self._cache.restore(self._cache.open(request.cache_salt, request.lora, request.media), known)
