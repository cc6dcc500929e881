"""The tiers of an engine: what sizes and files they have, and which earlier engine's copies they may use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path

from ..clock import MonotonicClock
from ..config import DataParallel, EngineConfig
from ..config.offload import OffloadConfig
from ..errors import SettingsError
from ..host.memory import GIB
from ..host.private_file import make_private_directory, open_locked
from ..host.shared_file import SharedFile
from ..kv_cache.stores import Store
from ..kv_cache.tiers import PrefillRate, Tiers
from ..link.messages import EngineInfo
from .blob_file import DISK, MEMORY, PEER, BlobBytes, BlobFile, SlotShape
from .buffers import most_kept

_HOST_FLOPS = 5e10  # assumed of a host before it has computed a prompt; a token takes two operations a parameter
_BLOCK_BYTES = 512  # unit of st_blocks
_ALIGNMENT = 4096
_MOST_SLOTS = 1 << 20  # of one file, so that looking for copies at the start takes no second
_MOST_SHOWN = 1 << 14  # of one file that other engines read, so that a hand-over takes them few milliseconds
_SUFFIX = ".kvtier"
Files = tuple[tuple[str, int, int, int], ...]


def model_files(path: str) -> Files:
    """Name, size, time and inode of each file of a model; they differ when the model does."""
    found = Path(path)
    files = sorted(found.rglob("*")) if found.is_dir() else [found] if found.exists() else []
    stats = ((str(file), file.stat()) for file in files if file.is_file())
    return tuple((name, each.st_size, each.st_mtime_ns, each.st_ino) for name, each in stats)


def require_tier_directory(config: OffloadConfig) -> None:
    """Make the directory of the disk tier, if one is configured. Raises SettingsError when it cannot be used."""
    if config.directory is None:
        return
    try:
        make_private_directory(Path(config.directory))
    except OSError as error:
        message = f"--kv-offloading-dir: cannot make {config.directory}: {error.strerror}"
        raise SettingsError(message) from error
    if not os.access(config.directory, os.W_OK | os.X_OK):
        raise SettingsError(f"--kv-offloading-dir: cannot write to {config.directory}")


@dataclass(frozen=True, slots=True)
class Offload:
    """Tiers of an engine's blocks, and of its states where layers keep one; None where nothing is copied."""

    rate: PrefillRate
    blocks: Tiers | None = None
    states: Tiers | None = None


def offload(
    kept: SharedFile,
    kinds: Sequence[BlobBytes | None],
    config: EngineConfig,
    info: EngineInfo,
    files: Files,
    peers: Sequence[SharedFile] = (),
) -> Offload:
    """Return the tiers of an engine.

    `kept` is memory that outlives it, `peers` that of engines whose copies it reads. `kinds` are the contents of its
    blocks and of its states, and `files` are the model's as they were before loading. Between two snapshots of a state
    there are many blocks, so both kinds get room in this proportion.
    """
    cache, rate = info.cache, PrefillRate(2 * max(1, info.facts.num_params) / _HOST_FLOPS)
    blobs = [each for each in kinds if each is not None]
    if not cache.enable_prefix_caching or len(blobs) != 1 + bool(cache.num_states):
        return Offload(rate)  # blocks are of no use without the states of the same prefixes
    interval = [cache.snapshot_blocks * len(cache.groups) * blobs[0].num_bytes, *(each.num_bytes for each in blobs[1:])]
    most = most_kept(config, info.facts.num_params, sum(interval) // cache.snapshot_blocks)
    plan = _Plan([kept, *peers], config.offload, most, _identity(config, info, files), 4 * cache.block_size)
    tiers = [plan.tiers(each, weight / sum(interval), rate) for each, weight in zip(blobs, interval, strict=True)]
    return Offload(rate) if None in tiers else Offload(rate, *tiers)


def require_hand_over(config: EngineConfig, found: Offload) -> None:
    """Raise SettingsError if requests are to be handed from engine to engine, and this one copies no blocks."""
    if config.data_parallel.num_prefill and found.blocks is None:
        room = f", or kept_kv_cache_gib {(config.most_kept_bytes or 0) / GIB:g} has no room for one"
        why = (
            "enable_prefix_caching is false"
            if not config.enable_prefix_caching
            else f"it keeps no whole KV blocks{room}"
        )
        raise SettingsError(f"disaggregate: {config.model_path} cannot be handed from engine to engine: {why}")


def _identity(config: EngineConfig, info: EngineInfo, files: Files) -> str:
    """Text that engines share only if each computes what the other does, bit by bit."""
    same = replace(  # without what may differ between an engine and its successor, or its peers
        config,
        num_blocks_override=None,
        threads_alone=None,
        cpu_threads=1,
        cpus=(),
        most_kept_bytes=None,
        data_parallel=DataParallel(),
        offload=OffloadConfig(),
    )
    return repr((same, files, info.facts.weights))


@dataclass(slots=True)
class _Plan:
    """Sizes of the tiers of all kinds."""

    kept: Sequence[SharedFile]  # its own, and those of its peers
    config: OffloadConfig
    kept_bytes: int
    identity: str
    text_bytes: int
    num_kinds: int = 0  # that are planned so far
    end: int = 0  # of their slots in memory

    def tiers(self, blobs: BlobBytes, share: float, rate: PrefillRate) -> Tiers | None:
        """Return the tiers of one kind of blob, which gets `share` of each; None where no copy fits."""
        config, stores, peers, clock = self.config, list[Store](), list[BlobFile](), MonotonicClock()
        self.num_kinds += 1  # copies of one kind are not read as another
        if shape := self._shape(blobs, share * (self.kept_bytes + config.memory_bytes), self.end):
            self.end = -(-shape.end // _ALIGNMENT) * _ALIGNMENT
            own, *others = [partial(_same, file) for file in self.kept]
            stores.append(BlobFile(own, blobs, shape, MEMORY, clock))
            peers = [BlobFile(other, blobs, shape, PEER, clock) for other in others]
        directory = config.directory
        if directory is not None and (shape := self._shape(blobs, share * config.disk_bytes, 0)):
            opened = partial(_open_in, Path(directory), shape, config.directory_bytes)
            stores.append(BlobFile(opened, blobs, shape, DISK, clock))
        if not stores:
            return None
        kept = self._shape(blobs, share * self.kept_bytes, 0)
        takes_evicted = config.memory_bytes > 0 or directory is not None
        return Tiers(stores, rate, kept.num_slots if kept else 0, takes_evicted, peers)

    def _shape(self, blobs: BlobBytes, most_bytes: float, begin: int) -> SlotShape | None:
        record = SlotShape(b"", 1, self.text_bytes, blobs.num_bytes).end
        num_slots = min(int(most_bytes) // record, _MOST_SHOWN if len(self.kept) > 1 else _MOST_SLOTS)
        same = self.identity, self.num_kinds, self.text_bytes, blobs.num_bytes
        identity = sha256(repr(same).encode()).digest()[:16]
        return SlotShape(identity, num_slots, self.text_bytes, blobs.num_bytes, begin) if num_slots else None


def _same(file: SharedFile) -> SharedFile:
    return file


def _open_in(directory: Path, shape: SlotShape, most_bytes: int) -> SharedFile:
    """Open the file of a shape that no other engine uses, and delete old ones that would exceed the limit with it.

    Raises OSError when the directory cannot be used.
    """
    for number in count():
        path = directory / f"{shape.identity.hex()}-{shape.num_slots}-{number}{_SUFFIX}"
        descriptor = open_locked(path)
        if descriptor is not None:
            _delete_old(directory, path, most_bytes - shape.end)
            return SharedFile.opened(descriptor)
    raise AssertionError("count() has no end")


def _delete_old(directory: Path, own: Path, most_bytes: int) -> None:
    """Delete the files of other shapes that no engine uses, oldest first, until they take at most `most_bytes`."""
    others = [(path, path.stat()) for path in directory.glob(f"*{_SUFFIX}") if path != own]
    total = sum(status.st_blocks * _BLOCK_BYTES for _, status in others)
    for path, status in sorted(others, key=lambda each: each[1].st_mtime):
        if total > max(0, most_bytes):
            with contextlib.suppress(OSError):  # it is gone, or another user's
                descriptor = open_locked(path)
                if descriptor is not None:
                    path.unlink()
                    os.close(descriptor)
                    total -= status.st_blocks * _BLOCK_BYTES
