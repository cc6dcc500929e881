"""An API key: its name, its scopes and its limits. The record holds the key's digest, never the key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

Scope = Literal["inference", "admin", "metrics"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of a key; None = no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and generated
    max_concurrent: int | None = None  # requests that are generated at once


NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class KeyScheduling:
    """How requests of a key are scheduled beside others; None = as the server says."""

    weight: float = 1.0  # by policy fair: share of the engine
    ttft_slo_ms: float | None = None  # by policy slo
    tpot_slo_ms: float | None = None


NO_SCHEDULING = KeyScheduling()


@dataclass(frozen=True, slots=True)
class Key:
    """One key. Metrics, usage and stored objects refer to it by its name."""

    name: str
    digest: bytes = field(repr=False)  # SHA-256 of the key
    scopes: frozenset[Scope] = frozenset({"inference"})
    limits: KeyLimits = NO_LIMITS
    priority: int | None = None  # the best of its requests, and their default
    scheduling: KeyScheduling = NO_SCHEDULING

    def opens(self, scopes: frozenset[Scope]) -> bool:
        """Return whether the key has one of `scopes`; admin keys open everything."""
        return "admin" in self.scopes or not scopes.isdisjoint(self.scopes)


@dataclass(frozen=True, slots=True)
class KeysConfig:
    """Keys of a server. Without keys everything is open."""

    fixed: tuple[Key, ...] = ()  # from flags and variables, fixed for the life of the process
    file: Path | None = None  # file with more keys; read again when it changes
    public_paths: tuple[str, ...] = ()  # open without a key; a slash at the end opens all paths below


NO_KEYS = KeysConfig()


def digest_of(key: str) -> bytes:
    """Return the digest that is kept of a key."""
    return hashlib.sha256(key.encode()).digest()
