"""Notification when files change. The watcher looks at them and never reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

PERIOD_S = 1.0
Signature = tuple[tuple[int, ...], ...]


class WatchedFiles:
    """Files that belong together. Links are followed, because Kubernetes changes secrets by replacing a link."""

    def __init__(self, files: Sequence[Path], changed: Callable[[], None]) -> None:
        """`changed` is called on the event loop when any of `files` has changed."""
        self._files, self._changed = files, changed
        self._seen = self._look()

    async def watch(self) -> None:
        """Look at the files; never return. A file that has just changed must rest first: it may be half written."""
        while True:
            await asyncio.sleep(PERIOD_S)
            found = await asyncio.to_thread(self._look)
            if found != self._seen:
                while found != (again := await self._later()):
                    found = again
                self._seen = found
                self._changed()

    async def _later(self) -> Signature:
        await asyncio.sleep(PERIOD_S / 4)
        return await asyncio.to_thread(self._look)

    def _look(self) -> Signature:
        return tuple(_signature(file) for file in self._files)


def _signature(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
