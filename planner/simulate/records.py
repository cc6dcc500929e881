"""What a simulation writes down about each request and each engine, in whole numbers, so that any order of adding up
gives the same. Times are nanoseconds; device time is in SHARES of a nanosecond, as a decode step is split evenly.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Protocol

SHARES = 1_000_000  # of a nanosecond: splitting one step among 256 slots loses under 1e-10 of it
NEVER = -1  # the time of what has not happened


class Records:
    """One entry for each request of the workload, by its index."""

    def __init__(self, size: int) -> None:
        self.sent_ns = array("q", [NEVER]) * size  # by its client: its arrival, or when the client was free
        self.scheduled_ns = array("q", [NEVER]) * size  # first placed in a step
        self.first_token_ns = array("q", [NEVER]) * size
        self.finish_ns = array("q", [NEVER]) * size
        self.num_output = array("q", [0]) * size
        self.num_cached = array("q", [0]) * size  # prompt tokens found in the prefix cache
        self.prefill_shares = array("q", [0]) * size  # device time: prompts, and prompts computed again
        self.decode_shares = array("q", [0]) * size
        self.gaps: Counter[int] = Counter()  # ns between two tokens of a request -> how often
        self.refused: Counter[str] = Counter()  # why -> how many


class EngineTotals:
    """What one engine did."""

    def __init__(self) -> None:
        self.busy_ns = 0
        self.num_steps = 0
        self.num_decode_steps = 0
        self.num_decode_tokens = 0
        self.num_preemptions = 0

    def count(self, steps: int, step_ns: int, num_decode: int) -> None:
        """`steps` equal steps, each of `num_decode` decoding sequences."""
        self.busy_ns += steps * step_ns
        self.num_steps += steps
        if num_decode:
            self.num_decode_steps += steps
            self.num_decode_tokens += steps * num_decode


class Engine(Protocol):
    """One engine in virtual time. The driver alone moves time: `apply` at `end_ns`, arrivals, then `plan`."""

    totals: EngineTotals
    end_ns: int  # when what was planned ends; NEVER while nothing is planned

    @property
    def num_open(self) -> int:
        """Requests that wait or run."""
        ...

    def add(self, index: int, now_ns: int) -> None:
        """Request `index` arrives. It may bring `end_ns` forward to the end of the step under way, never back."""
        ...

    def apply(self) -> None:
        """Record what was planned; afterwards nothing is planned."""
        ...

    def plan(self, now_ns: int) -> None:
        """Decide what runs from `now_ns` on; nothing when no request is open."""
        ...
