"""Requests that a simulated engine has lost: when they go on elsewhere, by the router's rules (server/route/rules.py).

Decisions over records, without engines. All requests are streams of this server, which can be continued.
"""

from __future__ import annotations

from heapq import heappop, heappush

from ...server.clock import NS
from ...server.route.rules import MAX_LOSSES, MAX_WAIT_S, PAUSE_S
from .records import NEVER, Records


class Recovery:
    """Requests on their way from a lost engine to the next."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._again: list[tuple[int, int]] = []  # heap of (time, request) that an engine has refused to go on with

    @property
    def next_ns(self) -> int:
        """Time at which an engine is asked again; NEVER without a request that waits for it."""
        return self._again[0][0] if self._again else NEVER

    def take_due(self, now_ns: int) -> list[int]:
        """Remove and return the requests for which an engine is asked again now."""
        due = []
        while self._again and self._again[0][0] <= now_ns:
            due.append(heappop(self._again)[1])
        return due

    def is_suspect(self, index: int) -> bool:
        """Return whether a request lost so many engines in a row that no other gets it."""
        return self._records.carried[index].num_losses > MAX_LOSSES

    def is_late(self, index: int, now_ns: int) -> bool:
        """Return whether a request has waited as long as it may for a replica."""
        carried = self._records.carried.get(index)
        since_ns = self._records.sent_ns[index] if carried is None else carried.left_ns
        return now_ns > since_ns + MAX_WAIT_S * NS

    def refused(self, index: int, reason: str, now_ns: int) -> str | None:
        """Return the reason of an engine's refusal for the client; None: the request has begun, and is sent again."""
        carried = self._records.carried.get(index)
        if carried is None or not carried.num_tokens:
            return reason
        if self.is_late(index, now_ns):
            return "replica_lost"
        heappush(self._again, (now_ns + round(PAUSE_S * NS), index))
        return None
