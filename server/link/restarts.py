"""Decision whether and when a dead engine gets a successor. Pure: `now` is an argument, in seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 2.0  # the number of restarts is limited too, and loading takes about as long


@dataclass(frozen=True, slots=True)
class Healing:
    """Treatment of engines that die or hang."""

    max_restarts: int = 0  # of one engine within the window; 0 = a dead engine is not replaced
    window_s: float = 60.0
    hang_timeout_s: float | None = None  # beyond the expected time of a step; None = hangs are not detected
    keeps_spare: bool = False  # load a second engine beside each, to take over


NO_HEALING = Healing()


class RestartBreaker:
    """Deaths of one engine. An engine that served is replaced at once; while none serves, pauses grow."""

    def __init__(self, healing: Healing) -> None:
        self._healing = healing
        self._deaths: deque[float] = deque()
        self._num_in_vain = 0  # consecutive deaths of engines that had computed nothing
        self.restarts = {"fault": 0, "outside": 0}  # by cause

    def delay_s(self, now: float, is_fault: bool, has_served: bool) -> float | None:
        """Record a death. Return seconds until the successor may start, or None after too many deaths.

        `has_served` says whether the engine had computed anything since it was ready.
        """
        deaths = self._deaths
        deaths.append(now)
        while deaths[0] < now - self._healing.window_s:
            deaths.popleft()
        if len(deaths) > self._healing.max_restarts:
            return None
        self.restarts["fault" if is_fault else "outside"] += 1
        self._num_in_vain = 0 if has_served else self._num_in_vain + 1
        return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self._num_in_vain - 1, 10)) if self._num_in_vain else 0.0
