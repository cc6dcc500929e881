"""By how much forecasts were off, and what nearly all of them would have been right with. Pure.

What is foreseen is a sum over those ahead, so its error grows with its root: a few bad forecasts leave a short queue
and not none, and so are forgotten. Each priority has its own, because the less urgent are passed by others.
"""

from __future__ import annotations

from collections import deque
from math import sqrt

NUM_ERRORS_KEPT = 128  # requests by which forecasts are judged
IN_TIME = 0.98  # share of them that came by `most_s`
MAX_EXPECTED = 4096  # requests whose first tokens are waited for here; aborted ones are among them
MAX_KEPT = 64  # priorities


class Margins:
    """Of one engine."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[int, float, float]] = {}  # priority, when it came, and the seconds foreseen
        self._errors: dict[int, deque[float]] = {}  # by priority: seconds beyond those, over their root
        self._margins: dict[int, float] = {}  # by priority: of the errors, the one that is nearly the largest, or 0

    def expect(self, request_id: str, priority: int, now: float, foreseen_s: float) -> None:
        """Note a request that was taken, with what was foreseen for it."""
        if foreseen_s > 0:
            self._expected[request_id] = priority, now, foreseen_s
            if len(self._expected) > MAX_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def judge(self, request_id: str, now: float) -> None:
        """Note that it has come; nothing was foreseen for some."""
        if request_id not in self._expected:
            return
        priority, came, foreseen_s = self._expected.pop(request_id)
        errors = self._errors.setdefault(priority, deque(maxlen=NUM_ERRORS_KEPT))
        errors.append((now - came - foreseen_s) / sqrt(foreseen_s))
        self._margins[priority] = max(0.0, sorted(errors)[int(len(errors) * IN_TIME)])
        if len(self._errors) > MAX_KEPT:
            first = next(iter(self._errors))
            del self._errors[first], self._margins[first]

    def forget_expected(self) -> None:
        """Whatever is awaited was foreseen of an engine that has ended."""
        self._expected.clear()

    def most_s(self, priority: int, foreseen_s: float) -> float:
        """Seconds that nearly all of the latest requests took at most for which so many were foreseen."""
        return foreseen_s + self._margins.get(priority, 0.0) * sqrt(foreseen_s)
