"""Seam between the cache and copies of its blocks outside of it."""

from __future__ import annotations

from typing import Protocol

from .blocks import BlockPool


class Copies(Protocol):
    """Copies of cached blocks by digest, which an engine leaves to its successor."""

    def keep(self, digest: bytes, block: int, pool: BlockPool) -> None:
        """Copy a block that is cached and held."""
        ...

    def __contains__(self, digest: bytes) -> bool: ...

    def restore(self, digest: bytes, block: int) -> bool:
        """Copy the content back into a block; return False when the copy is not whole."""
        ...

    def forget(self, digest: bytes) -> None:
        """Drop a copy."""
        ...

    def clear(self) -> None:
        """Drop all copies."""
        ...
