"""Settings of copies of KV blocks: for an engine's successor, and for blocks that have left the device."""

from __future__ import annotations

from typing import TypedDict

from pydantic import Field

from ..config.offload import OffloadConfig
from ..host.memory import GIB
from .base import File, Settings


class Copies(TypedDict):
    """Fields of EngineConfig."""

    most_kept_bytes: int | None
    offload: OffloadConfig


class OffloadSettings(Settings):
    """Base of the settings of `neuronserve serve`."""

    kept_kv_cache_gib: float | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="GiB of KV blocks kept for an engine's successor (default: 0.25 where copies are cheap)",
    )
    kv_offloading_size: float = Field(
        0, ge=0, le=1_000_000, description="GiB of host memory for KV blocks that have left the device"
    )
    kv_offloading_dir: File = Field(
        None, description="directory for KV blocks that have left host memory too; they outlive the server"
    )
    kv_offloading_dir_size: float = Field(16, gt=0, le=1_000_000, description="most GiB in kv_offloading_dir")

    def copies(self, num_engines: int) -> Copies:
        """Return the fields of one engine's configuration. Engines share the tiers' room."""
        kept, directory, most = self.kept_kv_cache_gib, self.kv_offloading_dir, int(self.kv_offloading_dir_size * GIB)
        memory = int(self.kv_offloading_size * GIB) // num_engines
        disk = () if directory is None else (str(directory), most // num_engines, most)
        kept_bytes = None if kept is None else int(kept * GIB)
        return {"most_kept_bytes": kept_bytes, "offload": OffloadConfig(memory, *disk)}
