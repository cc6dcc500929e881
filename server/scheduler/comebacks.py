"""When those who were refused may come back: one after the other, as fast as the engine serves them. Pure.

Told the same time, a thousand refused requests come back together, and all but a few are refused again. So each is told
a time behind those that were told one before it, of its tenant and no less urgent, as far as such clients come back:
those who ask again at once, or never, would have others wait for nobody. Nothing is kept free for them: who is told a
time finds room then if nobody comes but those who were told to.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from neuronserve.server.types import Request

MOST_S = 60.0  # what clients' libraries obey at most
GAP = 0.9  # of what the engine takes: it must not wait for those who are late
LATE_S = 2.0  # after the time that it was told nobody is waited for
NUM_JUDGED = 32  # of those told a time, by which the share of them that comes is known: older ones weigh less and less
MAX_KEPT = 4096  # of those told a time; and tenants with their priorities
Place = tuple[str, int]  # a tenant and a priority


@dataclass(frozen=True, slots=True)
class _Told:
    """What a refused request was told."""

    place: Place
    time: float
    gap_s: float


@dataclass(slots=True)
class _Line:
    """Those of a place who are awaited."""

    num_awaited: int = 0
    awaited_s: float = 0.0  # of the engine, that they need
    last: float = -inf  # time that was told


class Comebacks:
    """Of one engine. A request is known again by its prompt."""

    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}  # by what a request is known by
        self._times: list[tuple[float, int]] = []  # a heap of the same
        self._lines: dict[Place, _Line] = {}  # in which somebody is awaited
        self._shares: dict[str, float] = {}  # of those told a time, who comes then; by tenant, 1 where none is known

    def come(self, request: Request) -> None:
        """Note a request, whatever becomes of it."""
        now, known_by = request.arrival_time, _known_by(request)
        while self._times and (self._times[0][0] + LATE_S < now or len(self._times) > MAX_KEPT):
            time, stale = heappop(self._times)
            if stale in self._told and self._told[stale].time == time:
                self._judge(stale, has_come=False)
        if known_by in self._told:
            self._judge(known_by, has_come=self._told[known_by].time <= now)

    def book(self, request: Request, wait_s: float, gap_s: float) -> float:
        """Seconds until `request`, which has come and was refused, may come back: `wait_s` at least.

        The engine needs `gap_s` for one like it.
        """
        now, place, known_by = request.arrival_time, (request.tenant, request.priority), _known_by(request)
        share = GAP * self._shares.get(request.tenant, 1.0)
        before = [
            line for (tenant, priority), line in self._lines.items()
            if tenant == request.tenant and priority <= request.priority
        ]  # fmt: skip
        behind_s = max((line.last for line in before), default=-inf) - now + share * gap_s
        needed_s = wait_s + share * sum(line.awaited_s for line in before)
        after_s = min(MOST_S, max(wait_s, min(behind_s, needed_s)))
        self._told[known_by] = told = _Told(place, now + after_s, gap_s)
        heappush(self._times, (told.time, known_by))
        line = self._lines.setdefault(place, _Line())
        line.num_awaited, line.awaited_s, line.last = line.num_awaited + 1, line.awaited_s + gap_s, told.time
        return after_s

    def _judge(self, known_by: int, has_come: bool) -> None:
        told = self._told.pop(known_by)
        line = self._lines[told.place]
        line.num_awaited, line.awaited_s = line.num_awaited - 1, line.awaited_s - told.gap_s
        if not line.num_awaited:
            del self._lines[told.place]
        tenant, _ = told.place
        share = self._shares.pop(tenant, 1.0)
        self._shares[tenant] = share + (has_come - share) / NUM_JUDGED
        if len(self._shares) > MAX_KEPT:
            del self._shares[next(iter(self._shares))]


def _known_by(request: Request) -> int:
    return hash((request.tenant, request.priority, request.prompt_token_ids))
