"""A target that has nothing to write for a deployment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why: a sentence without its full stop."""

    reason: str
