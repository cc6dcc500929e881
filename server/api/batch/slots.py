"""Number of batch lines that run at once. It leaves room for requests of waiting clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from ..service import Service

SHARE = 0.75  # of the running sequences; the scheduler takes no slot away, so the rest stays free
POLL_S = 0.05  # other requests come and go without notice


class Slots:
    """Counts the lines that run. Used on one event loop."""

    def __init__(self, service: Service, share: float = SHARE) -> None:
        self._service = service
        slots = sum(info.facts.compiled.slots for info in service.engine.infos)
        self._most = max(1, min(int(slots * share), service.model.info.max_num_queued_reqs - 1))
        self._num_taken = 0
        self._freed = asyncio.Event()

    async def wait(self) -> None:
        """Wait until one more line may start. One line always may, so that a batch ends on a busy server too."""
        while self._num_taken and self._num_taken + self._num_others >= self._most:
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._freed.wait()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold a slot while a line runs. Enter it before the next `wait`."""
        self._num_taken += 1
        try:
            yield
        finally:
            self._num_taken -= 1
            self._freed.set()

    @property
    def _num_others(self) -> int:
        return max(0, self._service.engine.num_open - self._num_taken)
