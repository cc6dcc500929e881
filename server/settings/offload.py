"""Settings of copies of KV blocks, for a successor, other engines, and after they left the device; and of KV events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypedDict

from pydantic import Field, model_validator

from ..api.config import KvEventsConfig
from ..config.disaggregation import Disaggregation
from ..config.offload import OffloadConfig
from ..host.memory import GIB
from ..typed_json import convert, parse
from .base import File, Implied, Settings
from .model import Json


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
        description="GiB of KV blocks kept for an engine's successor (default: 0.25 where cheap; 1 with disaggregate)",
    )
    kv_offloading_size: float = Field(
        0, ge=0, le=1_000_000, description="GiB of host memory for KV blocks that have left the device"
    )
    kv_offloading_dir: File = Field(
        None, description="directory for KV blocks that have left host memory too; they outlive the server"
    )
    kv_offloading_dir_size: float = Field(16, gt=0, le=1_000_000, description="most GiB in kv_offloading_dir")

    disaggregate: str | None = Field(
        None,
        description="prefill:P,decode:D: P engines compute prompts, and hand them over to D that decode (default: each "
        "does both); sets data_parallel_size",
    )
    kv_events_config: Json = Field(None, description="JSON with vLLM's keys (default: no KV events)")

    @classmethod
    def implied(cls, given: Mapping[str, Any], variables: Mapping[str, str]) -> Mapping[str, Implied]:
        """Return the number of engines of a disaggregated server too. Raises SettingsError."""
        found, text = super().implied(given, variables), given.get("disaggregate")
        total = 0 if text is None else Disaggregation.parse(str(text)).total
        return {**found, "data_parallel_size": Implied(total, "--disaggregate")} if total else found

    @property
    def num_prefill(self) -> int:
        """Number of engines that hand requests over, which are the first; 0: none does."""
        return 0 if self.disaggregate is None else Disaggregation.parse(self.disaggregate).num_prefill

    @model_validator(mode="after")
    def _events_can_be_published(self) -> Self:
        _ = self.kv_events
        return self

    @property
    def kv_events(self) -> KvEventsConfig | None:
        config = convert(parse(self.kv_events_config or "{}"), KvEventsConfig, "kv_events_config.")
        return config if config.enable_kv_cache_events and config.publisher != "null" else None

    def copies(self, num_engines: int) -> Copies:
        """Return the fields of one engine's configuration. Engines share the tiers' room."""
        kept, directory, most = self.kept_kv_cache_gib, self.kv_offloading_dir, int(self.kv_offloading_dir_size * GIB)
        memory = int(self.kv_offloading_size * GIB) // num_engines
        disk = () if directory is None else (str(directory), most // num_engines, most)
        kept_bytes = None if kept is None else int(kept * GIB)
        return {"most_kept_bytes": kept_bytes, "offload": OffloadConfig(memory, *disk)}
