"""Room for KV blocks that have left the device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """Sizes of the tiers of one engine."""

    memory_bytes: int = 0
    directory: str | None = None  # None: no copies on a disk
    disk_bytes: int = 0
    directory_bytes: int = 0  # of the files of all engines


NO_OFFLOAD = OffloadConfig()
