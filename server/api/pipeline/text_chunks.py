"""Chunks of a stream that differ in their text alone, which are most: written once, then only the text."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

MARK = "\0"
_ENCODED_MARK = b'"\\u0000"'


class TextChunks:
    """Events of the choices of one answer. `write` makes the event of a choice's index and a text."""

    def __init__(self, write: Callable[[int, str], bytes]) -> None:
        self._write = write
        self._parts: dict[int, tuple[bytes, bytes]] = {}  # of each choice, before its text and behind it

    def event(self, index: int, text: str) -> bytes:
        """The event that `write` would make."""
        parts = self._parts.get(index)
        if parts is None:
            parts = self._parts[index] = self._divide(index)
        return b"%b%b%b" % (parts[0], msgspec.json.encode(text), parts[1])

    def _divide(self, index: int) -> tuple[bytes, bytes]:
        """Nothing that a client chose stands behind the text, so that its place is the mark's last."""
        before, _, behind = self._write(index, MARK).rpartition(_ENCODED_MARK)
        return before, behind
