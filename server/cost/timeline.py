"""When the steps of the modelled part begin and end. Pure: given the time in whole nanoseconds, it never waits.

A step follows the one before it at once, or after a pause with nothing to do. Under pacing the ends are deadlines on
the host's clock, each worked out from the one before, so that what the host takes between two steps, and errors of its
waits, do not add up. The pieces then neither overlap nor leave a hole: idle + lag + steps = last end - start.
"""

from __future__ import annotations

# What a paced step may make up for of the host's delay before it: more than a turn of the engine loop takes. A longer
# delay is lost time, so that no run of steps is hurried after the host has been held up.
MAX_CARRY_NS = 1_000_000


class Timeline:
    """The steps of one engine so far, as far as their pauses and deadlines need it."""

    def __init__(self, start_ns: int) -> None:
        self.end_ns = start_ns  # of the last step

    def pause(self, now_ns: int) -> int:
        """Nothing was to be done since the last step; returns for how long."""
        idle_ns = max(0, now_ns - self.end_ns)
        self.end_ns += idle_ns
        return idle_ns

    def lag(self, now_ns: int) -> int:
        """The next step follows the last one, but the host begins it only now; returns the time that is lost."""
        lost_ns = max(0, now_ns - self.end_ns - MAX_CARRY_NS)
        self.end_ns += lost_ns
        return lost_ns

    def step(self, duration_ns: int) -> int:
        """Append a step; returns when it is due to end."""
        self.end_ns += duration_ns
        return self.end_ns

    def host_step(self, now_ns: int) -> None:
        """Without pacing: the last step ended when the host had computed it, so that pauses are those of the host."""
        self.end_ns = now_ns
