"""How long requests wait at one replica: a prompt stops all decoding, slots are few, arrivals are Poisson.

Neuron encodes prompts one at a time and never together with a decode step, so a replica is one server that alternates.
Formulas with their reasons: docs/plan.md. Knows no hardware and no prices.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_LOAD = 0.95  # share of saturation above which no plan is made: mean waits there grow without bound
BISECTIONS = 30


@dataclass(frozen=True, slots=True)
class Replica:
    """One tensor-parallel group that serves requests of one kind. All rates are requests a second of this replica."""

    prefill_s: float  # of one prompt
    decode_s: float  # of one step, all slots
    slots: int
    output_tokens: int  # of a request; the prefill makes the first

    @property
    def steps(self) -> int:
        """Decode steps of a request."""
        return self.output_tokens - 1

    @property
    def saturation(self) -> float:
        """Requests a second with every slot always busy: `slots` requests take their prefills and share their steps."""
        return self.slots / (self.slots * self.prefill_s + self.steps * self.decode_s)

    def _others(self, rate: float) -> float:
        """Prefills a second from the other slots, seen by a request that is not itself in prefill."""
        return rate * (self.slots - 1) / (self.slots - rate * self.prefill_s)

    def tpot_s(self, rate: float) -> float:
        """Mean time per output token after the first: a step, and the prefills of others that come between.

        At saturation this is exactly decode + (slots - 1) * prefill / steps. 0 when requests have one output token.
        """
        return self.decode_s / (1 - self._others(rate) * self.prefill_s) if self.steps else 0.0

    def hold_s(self, rate: float) -> float:
        """Mean time that a request occupies its slot."""
        return self.prefill_s + self.steps * self.tpot_s(rate)

    def slot_wait_s(self, rate: float) -> float:
        """Mean wait for a free slot: M/D/c as half of M/M/c (Erlang C); exact for one slot."""
        hold = self.hold_s(rate)
        offered = rate * hold
        return 0.5 * erlang_c(self.slots, offered) * hold / (self.slots - offered)

    def turn_wait_s(self, rate: float) -> float:
        """Mean wait, with a slot in hand, for prompts ahead (M/D/1) and for the end of the decode step under way."""
        others = self._others(rate)
        load = others * self.prefill_s
        idle = (1 - rate * self.hold_s(rate) / self.slots) ** (self.slots - 1)  # that no other slot is busy
        residual = 0.5 * self.decode_s * (1 - idle) if self.steps else 0.0
        return 0.5 * load * self.prefill_s / (1 - load) + residual

    def ttft_s(self, rate: float) -> float:
        """Mean time to first token. `rate` must be below saturation; it never falls as the rate grows."""
        return self.slot_wait_s(rate) + self.turn_wait_s(rate) + self.prefill_s

    def meets(self, rate: float, ttft_s: float, tpot_s: float) -> bool:
        """Whether both means are within their limits."""
        return self.tpot_s(rate) <= tpot_s and self.ttft_s(rate) <= ttft_s

    def rate_within(self, ttft_s: float, tpot_s: float) -> float:
        """The highest rate, up to MAX_LOAD of saturation, that keeps the means within the limits; 0 when none does."""
        high = MAX_LOAD * self.saturation
        if self.meets(high, ttft_s, tpot_s):
            return high
        if self.prefill_s > ttft_s or (self.steps and self.decode_s > tpot_s):
            return 0.0
        low = 0.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.meets(middle, ttft_s, tpot_s) else (low, middle)
        return low


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival waits in M/M/c with `offered` Erlangs on `servers` servers, offered < servers."""
    if offered <= 0:
        return 0.0
    blocked = 1.0  # Erlang B, by its recursion
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))
