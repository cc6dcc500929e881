"""Begin and end times of the modelled accelerator's steps, in whole nanoseconds. It reads no clock and never waits.

A step follows the previous one at once, or after an idle pause. Under pacing the ends are deadlines on the host's
clock. Each is computed from the previous one, so host time between steps and errors of waits do not add up.
Conservation: idle and bubbles + lag + steps = last end - start.
"""

from __future__ import annotations

# Largest host delay before a paced step that the step may catch up: more than a turn of the engine loop takes. A longer
# delay is lost time, so that steps are not rushed after the host has been held up.
MAX_CARRY_NS = 1_000_000


class Timeline:
    """The end of one engine's last step, from which pauses and deadlines follow."""

    def __init__(self, start_ns: int) -> None:
        self.end_ns = start_ns  # of the last step: the next one can follow
        self._delay_ns = 0  # until the results of the last step, behind its end

    def pause(self, now_ns: int) -> int:
        """Record that the engine was idle since the last step; return the idle time."""
        idle_ns = max(0, now_ns - self.end_ns)
        self.end_ns += idle_ns
        return idle_ns

    def bubble(self, now_ns: int) -> int:
        """Record that the next step waited for results of the last one in other stages; return the time."""
        idle_ns = min(max(0, now_ns - self.end_ns), self._delay_ns)
        self.end_ns += idle_ns
        return idle_ns

    def lag(self, now_ns: int) -> int:
        """Record that the host starts the next step only now; return the lost time."""
        lost_ns = max(0, now_ns - self.end_ns - MAX_CARRY_NS)
        self.end_ns += lost_ns
        return lost_ns

    def step(self, duration_ns: int, delay_ns: int = 0) -> int:
        """Append a step; return its deadline. In a pipeline its results come `delay_ns` after the next can follow."""
        self.end_ns += duration_ns
        self._delay_ns = delay_ns
        return self.end_ns + delay_ns

    def host_step(self, now_ns: int) -> None:
        """Record, without pacing, that the host ended the last step now. Idle pauses are then the host's."""
        self.end_ns = now_ns
