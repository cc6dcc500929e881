"""How long a request may take, by its own `timeout`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from neuronserve.server.api.http.origin import Origin
from neuronserve.server.clock import Clock
from neuronserve.server.errors import RequestTimeout

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a request is to end, in seconds of the monotonic clock; None: whenever it does."""

    time: float | None = None
    timeout_s: float = 0.0

    @classmethod
    def of(cls, origin: Origin, timeout_s: float | None) -> Deadline:
        """`timeout_s` after the request came."""
        return cls() if timeout_s is None else cls(origin.arrival_time + timeout_s, timeout_s)

    def limit(self, work: Awaitable[T], clock: Clock) -> Awaitable[T]:
        """The result of `work`, which is cancelled when the time is over; then raises RequestTimeout."""
        return work if self.time is None else self._limited(work, self.time - clock.now())

    async def _limited(self, work: Awaitable[T], left_s: float) -> T:
        try:
            async with asyncio.timeout(left_s):
                return await work
        except TimeoutError as error:
            raise RequestTimeout(f"The request's timeout of {self.timeout_s:g} s has passed.", "timeout") from error
