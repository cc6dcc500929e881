"""Metrics of sequences that went from engine to engine, after a death or a first token."""

from __future__ import annotations

from ...clock import NS
from ...link.client import EngineClient
from .instruments import Instruments, ReadCounters


def show_recovery(client: EngineClient, counters: ReadCounters, instruments: Instruments) -> None:
    """Expose the cost of one engine's deaths."""
    journal, shared = client.journal, instruments.common
    counters.add("neuronserve:engine_restarts", lambda: client.breaker.restarts, **shared)
    counters.add("neuronserve:recovered_sequences", lambda: journal.sequences, **shared)
    counters.add("neuronserve:recomputed_tokens", lambda: journal.recomputed_tokens, **shared)
    counters.add("neuronserve:handed_over_prompt_tokens", lambda: journal.handed_tokens, **shared)
    counters.add("neuronserve:recomputed_device_seconds", lambda: {"operator": journal.recomputed_ns / NS}, **shared)
