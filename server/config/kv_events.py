"""Publication of KV cache events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """vLLM's keys. With several engines each adds its rank to the ports."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None  # None: zmq if events are enabled
    endpoint: str = "tcp://127.0.0.1:5557"  # of the PUB socket
    replay_endpoint: str | None = None  # of the ROUTER socket; None = nothing is replayed
    buffer_steps: int = 10_000  # batches that are kept for replay
    hwm: int = 100_000  # batches that wait for a slow subscriber, before it misses some; 0 = any number
    max_queue_size: int = 100_000  # without effect: batches are sent in the turn that brings them
    topic: str = ""

    @property
    def is_on(self) -> bool:
        """Return whether events are published."""
        return self.enable_kv_cache_events and self.publisher != "null"


NO_KV_EVENTS = KvEventsConfig()
