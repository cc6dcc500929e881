"""Phase of a server's life, as health probes report it."""

from __future__ import annotations

from typing import Literal

from ..link.groups import EngineGroups

Phase = Literal["loading", "ready", "stalled", "recovering", "degraded", "draining", "dead"]


def phase_of(engines: EngineGroups, is_loaded: bool, is_draining: bool) -> Phase:
    """Return the phase of a server's life."""
    if not engines.is_alive:
        return "dead"
    if is_draining:
        return "draining"
    if not is_loaded:
        return "loading"
    states = engines.states
    if "dead" in states:
        return "degraded"
    if "serving" in states:
        return "ready"
    return "stalled" if "stalled" in states else "recovering"
