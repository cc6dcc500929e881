"""When those who were refused may come back: one after the other, as fast as the engine serves them. Pure.

Told the same time, a thousand refused requests come back together, and all but a few are refused again. So each is told
a time behind those that were told one before it, of its tenant and no less urgent. Nothing is kept free for them: who
is told a time finds room then if nobody comes but those who were told to.
"""

from __future__ import annotations

from server.types import Request

MOST_S = 60.0  # what clients' libraries obey at most
GAP = 0.9  # of what the engine takes: not all come back, and it must not wait for them
MAX_KEPT = 256  # last times, of tenants and priorities


class Comebacks:
    """Of one engine."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], float] = {}  # the latest time told, by tenant and priority

    def book(self, request: Request, wait_s: float, gap_s: float) -> float:
        """Seconds until `request`, refused as it came, may come back: `wait_s` at least.

        The engine needs `gap_s` for one like it.
        """
        now, priority = request.arrival_time, request.priority
        before = [
            time
            for (tenant, its_priority), time in self._last.items()
            if tenant == request.tenant and its_priority <= priority
        ]
        time = min(
            now + MOST_S, max(now + wait_s, *(each + GAP * gap_s for each in before)) if before else now + wait_s
        )
        self._last.pop((request.tenant, priority), None)
        self._last[request.tenant, priority] = time
        if len(self._last) > MAX_KEPT:
            del self._last[next(iter(self._last))]
        return min(MOST_S, time - now)
