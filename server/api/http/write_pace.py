"""Writes to streams: what one turn of the event loop brings for a client leaves in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WritePace:
    """Writes that wait for the end of the turn of the event loop, in which several steps of an engine may arrive."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def wait(self, write: Callable[[], None]) -> None:
        """Call `write` when all messages that have arrived are handled."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        self._waiting.append(write)

    def _write(self) -> None:
        writes, self._waiting = self._waiting, []
        for write in writes:
            write()
