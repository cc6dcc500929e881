"""Free memory of the host, and measures before the kernel kills a process for lack of it.

First caches are emptied: they only save work. Then new requests are refused, because only requests need more memory:
weights and KV cache are mapped at the start.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from ..errors import Overloaded
from ..host.memory import GIB, SPARE_BYTES, available_bytes, taken_bytes

log = logging.getLogger("neuronserve")
SHORT_BYTES = SPARE_BYTES // 4  # left when refusals begin
# Left when they end: more, so that refusals do not flicker. With less, caches are emptied.
ENOUGH_BYTES = SPARE_BYTES // 2
RELEASE_LOOKS = 30  # between two releases of caches, while they do not help
PERIOD_S = 1.0
RETRY_AFTER_S = 5  # memory returns as requests end


class HostMemory:
    """Memory of the server on its host; `budget_bytes` is for all its processes, None = the host's memory."""

    def __init__(self, budget_bytes: int | None, release: Callable[[], None]) -> None:
        """`release` empties the caches."""
        self._budget_bytes, self._release = budget_bytes, release
        self._num_low_looks = 0  # consecutive
        self.left_bytes = ENOUGH_BYTES if budget_bytes is None else budget_bytes  # at the last look
        self.is_short = False

    def look(self, left_bytes: int) -> None:
        """Record the memory that is left."""
        was_short, self.left_bytes = self.is_short, left_bytes
        self.is_short = left_bytes < (ENOUGH_BYTES if was_short else SHORT_BYTES)
        if self.is_short != was_short:
            done = "new requests are refused" if self.is_short else "new requests are accepted again"
            log.warning("%.2f GiB of the host's memory are left; %s", left_bytes / GIB, done)
        self._num_low_looks = self._num_low_looks + 1 if left_bytes < ENOUGH_BYTES else 0
        if self._num_low_looks % RELEASE_LOOKS == 1:
            log.warning("%.2f GiB of the host's memory are left; caches are emptied", left_bytes / GIB)
            self._release()

    def check(self) -> None:
        """Raise Overloaded while too little memory is left for a new request."""
        if self.is_short:
            left = max(0, self.left_bytes) // 2**20
            message = f"The server is short of memory: {left} MiB are left. Try again in {RETRY_AFTER_S} s."
            raise Overloaded(message, "host_memory_gib", RETRY_AFTER_S, "host_memory")

    async def watch(self) -> None:
        """Look at the memory repeatedly; never return."""
        while True:
            self.look(await asyncio.to_thread(self._measure))
            await asyncio.sleep(PERIOD_S)

    def _measure(self) -> int:
        left = available_bytes()
        return left if self._budget_bytes is None else min(left, self._budget_bytes - taken_bytes(os.getpid()))
