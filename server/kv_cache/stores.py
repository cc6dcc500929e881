"""Places for copies of blobs below the device: stores of an engine's own, and those of its peers."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Protocol

from .hashing import Blob


class Store(Protocol):
    """Slots 0 .. num_slots - 1 for copies of one kind of blob. A store that fails returns False and raises nothing."""

    num_slots: int
    medium: str  # name of its memory
    load_s: float  # predicted seconds of one load
    transfers: dict[str, tuple[int, float]]  # bytes and seconds since the start, by direction

    def open(self) -> Iterable[tuple[int, bytes]]:
        """Begin to use the slots; return those that hold a copy of an earlier engine, with its name."""
        ...

    def save(self, slot: int, blob: Blob, place: int) -> bool:
        """Copy the blob at `place` of the device into a slot."""
        ...

    def move(self, slot: int, source: Store, source_slot: int) -> bool:
        """Copy a slot of another store, whole or not."""
        ...

    def raw(self, slot: int) -> tuple[bytes, bytes] | None:
        """Return the seal and the content of a slot, whole or not; None when it cannot be read."""
        ...

    def load(self, slot: int, blob: Blob, place: int) -> bool:
        """Copy a slot to `place` of the device, if it holds all of exactly this blob."""
        ...

    def relax(self) -> None:
        """Move a prediction for which a copy was not loaded towards the first one, so that it is tried again."""
        ...

    def erase(self, slot: int) -> None:
        """Make the slot hold nothing."""
        ...

    def clear(self) -> None:
        """Erase all slots and release their memory."""
        ...


class Peer(Protocol):
    """Copies that another engine makes and reuses at any time. They are read, and never written."""

    transfers: dict[str, tuple[int, float]]  # as of a Store

    def copies(self) -> MutableMapping[bytes, int]:
        """Return names and slots of the copies that are there now."""
        ...

    def load(self, slot: int, blob: Blob, place: int) -> bool:
        """Copy a slot to `place` of the device, if it still holds all of exactly this blob."""
        ...
