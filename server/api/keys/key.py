"""An API key: its name, what it opens, and how much of the server it may use. Holds the key's digest, never the key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

Scope = Literal["inference", "admin", "metrics"]
SCOPES: frozenset[Scope] = frozenset(get_args(Scope))


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """How much a key may use; None = as much as there is."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompts' and generated ones
    max_concurrent: int | None = None  # requests that are generated at once


NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class Key:
    """One key. Its name is what metrics, usage and stored objects know it by."""

    name: str
    digest: bytes = field(repr=False)  # SHA-256 of the key
    scopes: frozenset[Scope] = frozenset({"inference"})
    limits: KeyLimits = NO_LIMITS
    priority: int | None = None  # the best that its requests may have, and what they have by default

    def opens(self, scopes: frozenset[Scope]) -> bool:
        """Whether one of `scopes` is the key's; those of operators open everything."""
        return "admin" in self.scopes or not scopes.isdisjoint(self.scopes)


@dataclass(frozen=True, slots=True)
class KeysConfig:
    """The keys of a server. Without any everything is open."""

    fixed: tuple[Key, ...] = ()  # of flags and variables, for the life of the process
    file: Path | None = None  # with more of them; read again when it changes
    public_paths: tuple[str, ...] = ()  # that ask for no key; with a slash at the end, all that is below


NO_KEYS = KeysConfig()


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).digest()
