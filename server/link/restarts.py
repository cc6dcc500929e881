"""Whether and when an engine that has died gets a successor. Pure: `now` is an argument, in seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 2.0  # the number of restarts is limited too, and a start takes about as long by itself


@dataclass(frozen=True, slots=True)
class Healing:
    """How a server deals with engines that die or hang."""

    max_restarts: int = 0  # of one engine within the window; 0 = an engine that died stays dead
    window_s: float = 60.0
    hang_timeout_s: float | None = None  # beyond the time a step should take; None = hangs are not looked for
    keeps_spare: bool = False  # a second engine, loaded beside each, to take over


NO_HEALING = Healing()


class RestartBreaker:
    """The deaths of one engine. One that has served is followed at once; while none does, pauses grow."""

    def __init__(self, healing: Healing) -> None:
        self._healing = healing
        self._deaths: deque[float] = deque()
        self._num_in_vain = 0  # deaths in a row of engines that had served nothing
        self.restarts = {"fault": 0, "outside": 0}  # by what the death came of

    def delay_s(self, now: float, is_fault: bool, has_served: bool) -> float | None:
        """Note a death; seconds until the successor may start, or None when there have been too many.

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
