"""Whether and when an engine that has died gets a successor. Pure: `now` is an argument, in seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 8.0


@dataclass(frozen=True, slots=True)
class Healing:
    """How a server deals with engines that die or hang."""

    max_restarts: int = 0  # of one engine within the window; 0 = an engine that died stays dead
    window_s: float = 60.0
    hang_timeout_s: float | None = None  # beyond the time a step should take; None = hangs are not looked for
    keeps_spare: bool = False  # a second engine, loaded beside each, to take over


NO_HEALING = Healing()


class RestartBreaker:
    """The deaths of one engine. After the first in a window it restarts at once, after others with growing pauses."""

    def __init__(self, healing: Healing) -> None:
        self._healing = healing
        self._deaths: deque[float] = deque()
        self.restarts = {"fault": 0, "outside": 0}  # by what the death came of

    def delay_s(self, now: float, is_fault: bool) -> float | None:
        """Note a death; seconds until the successor may start, or None when there have been too many."""
        deaths = self._deaths
        deaths.append(now)
        while deaths[0] < now - self._healing.window_s:
            deaths.popleft()
        if len(deaths) > self._healing.max_restarts:
            return None
        self.restarts["fault" if is_fault else "outside"] += 1
        repeats = len(deaths) - 1
        return 0.0 if not repeats else min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(repeats - 1, 10))
