"""Records of each request and each engine in a simulation, as integers, so that sums do not depend on their order.

Times are nanoseconds. Device time is in SHARES of a nanosecond, as a decode step is split evenly among its requests.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import NamedTuple, Protocol

SHARES = 1_000_000  # of a nanosecond: splitting one step among 256 slots loses under 1e-10 of it
HOUR_S = 3600
NEVER = -1  # time of an event that has not happened


class Carried(NamedTuple):
    """State that an open request takes to its next engine, kept until that one has made a token."""

    num_tokens: int
    last_ns: int  # time of the last token; NEVER without one
    left_ns: int  # when the first of these engines was found to be lost, or handed the request over
    num_losses: int = 0  # engines lost in a row; 0: it was handed over by an engine that lives


class Records:
    """Arrays with one entry for each request of the workload, by its index."""

    def __init__(self, size: int) -> None:
        self.sent_ns = array("q", [NEVER]) * size  # by its client: at its arrival, or when the client was free
        self.scheduled_ns = array("q", [NEVER]) * size  # first placed in a step
        self.first_token_ns = array("q", [NEVER]) * size
        self.finish_ns = array("q", [NEVER]) * size
        self.num_output = array("q", [0]) * size
        self.num_cached = array("q", [0]) * size  # prompt tokens found in the prefix cache
        self.prefill_shares = array("q", [0]) * size  # device time of prompts, also of recomputed ones
        self.decode_shares = array("q", [0]) * size
        self.gaps: Counter[int] = Counter()  # ns between two tokens of a request -> count
        self.refused: Counter[str] = Counter()  # reason -> count
        self.handed = Counter[str]()  # requests, bytes and ns of copies from engine to engine
        self.carried: dict[int, Carried] = {}  # by request
        self.moved = Counter[str]()  # requests that lost an engine, and the tokens that they had: each loss counts
        self.pauses: Counter[int] = Counter()  # ns between two tokens with a loss in between -> count


class EngineTotals:
    """Totals of one engine."""

    def __init__(self) -> None:
        self.busy_ns = 0
        self.num_steps = 0
        self.num_decode_steps = 0
        self.num_decode_tokens = 0
        self.num_preemptions = 0

    def count(self, steps: int, step_ns: int, num_decode: int) -> None:
        """Count `steps` equal steps, each of `num_decode` decoding sequences."""
        self.busy_ns += steps * step_ns
        self.num_steps += steps
        if num_decode:
            self.num_decode_steps += steps
            self.num_decode_tokens += steps * num_decode


class Engine(Protocol):
    """One engine in virtual time. The driver moves time: `apply` at `end_ns`, then arrivals, then `plan`."""

    totals: EngineTotals
    end_ns: int  # end of the planned steps; NEVER while nothing is planned

    @property
    def num_open(self) -> int:
        """Number of waiting and running requests."""
        ...

    def add(self, index: int, now_ns: int) -> None:
        """Add request `index`. It may move `end_ns` forward to the end of the current step, never back."""
        ...

    def apply(self) -> None:
        """Record the planned steps; afterwards nothing is planned."""
        ...

    def plan(self, now_ns: int) -> None:
        """Plan the steps from `now_ns` on; none if no request is open."""
        ...
