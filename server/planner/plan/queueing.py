"""Queueing model of one replica: a prompt stops all decoding, slots are few, arrivals are Poisson.

Neuron encodes prompts one at a time and never together with a decode step, so a replica is one server that alternates.
A scheduler that mixes phases runs the prompts that wait, and one decode, before it gives out any of their tokens.
Formulas with their reasons: docs/plan.md. Neither hardware nor prices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log, sqrt
from statistics import NormalDist
from typing import Literal

MAX_LOAD = 0.9  # share of saturation above which no plan is made: mean waits there grow without bound
BISECTIONS = 30
HUGE = 1e200  # weights of the chain are scaled down from here


@dataclass(frozen=True, slots=True)
class MeanTimes:
    """Mean times that requests meet at one load."""

    ttft_s: float
    tpot_s: float  # 0 when requests have one output token
    wait_s: float = 0.0  # of the TTFT, for others
    waiting: float = 0.0  # share of the requests that wait at all
    tpot_sd_s: float = 0.0  # of the requests' own means

    def ttft_quantile_s(self, share: float) -> float:
        """TTFT that `share` of the requests do not exceed: waits are exponential, as far as there are any."""
        if self.wait_s <= 0 or share <= 1 - self.waiting:
            return self.ttft_s - self.wait_s
        return self.ttft_s - self.wait_s + self.wait_s / self.waiting * log(self.waiting / (1 - share))

    def tpot_quantile_s(self, share: float) -> float:
        """Time per token that `share` of the requests do not exceed, by the normal law."""
        return self.tpot_s + self.tpot_sd_s * NormalDist().inv_cdf(share)

    def within(self, limits: Iterable[Limit]) -> bool:
        return all(limit.of(self) <= limit.seconds for limit in limits)


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a mean, or a quantile, of a time may be."""

    figure: Literal["TTFT", "TPOT"]
    seconds: float
    share: float | None = None  # of the requests that keep it; None: their mean does

    @property
    def name(self) -> str:
        """Such as `TTFT` and `TTFT p95`."""
        return self.figure if self.share is None else f"{self.figure} p{self.share * 100:g}"

    def of(self, times: MeanTimes) -> float:
        """The figure that is limited, in seconds."""
        if self.share is None:
            return times.ttft_s if self.figure == "TTFT" else times.tpot_s
        quantile = times.ttft_quantile_s if self.figure == "TTFT" else times.tpot_quantile_s
        return quantile(self.share)


@dataclass(frozen=True, slots=True)
class Replica:
    """A tensor-parallel group that serves requests of one kind. All rates are requests a second of this replica."""

    prefill_s: float  # of one prompt
    decode_s: float  # of one step, all slots, over their full length
    slots: int
    output_tokens: float  # of a mean request; the prefill makes the first
    prefill_cv2: float = 0.0  # squared coefficient of variation of prefills, of which `prefill_s` is the mean
    steps_cv2: float = 0.0  # of the steps of a request
    peers: int = 1  # replicas, this one included, among which a request goes to the least loaded
    later_stages_s: float = 0.0  # of a prompt, beyond `prefill_s`, in which others may be encoded already
    shorter: tuple[tuple[float, float], ...] = ()  # seconds of a step on each bucket below, share of contexts within it
    mixes_phases: bool = False  # prompts share steps with decodes, which then have one bucket
    request_s: float = 0.0  # on the host, before a prompt is in the queue
    host_slot_s: float = 0.0  # that the host adds to a step for each busy slot beyond the first
    padded: tuple[tuple[int, float], ...] = ()  # slots of smaller graphs and seconds of their steps, ascending
    tokens_per_step: float = 1.0  # that a slot gains in a step: more than one with speculative decoding

    @property
    def steps(self) -> float:
        """Decode steps of a request."""
        return (self.output_tokens - 1) / self.tokens_per_step

    def step_s(self, busy: float) -> float:
        """Mean seconds of a decode step of `busy` slots: it runs on the bucket that holds the longest of them."""
        return self._device_step_s(busy) + self.host_slot_s * max(0.0, busy - 1)

    def _device_step_s(self, busy: float) -> float:
        if not self.shorter:
            return next((seconds for slots, seconds in self.padded if slots >= busy), self.decode_s)
        below, mean = 0.0, 0.0
        for seconds, share in (*self.shorter, (self.decode_s, 1.0)):
            within = share**busy
            mean, below = mean + seconds * (within - below), within
        return mean

    def completions(self, busy: int) -> float:
        """Requests a second with `busy` slots always busy: they take their prefills in turn and share their steps."""
        steps = self.steps + (self.mixes_phases and busy > 1 and self.steps > 0)  # others decode beside the prompt
        return busy / (busy * self.prefill_s + self.later_stages_s + steps * self.step_s(busy))

    @property
    def saturation(self) -> float:
        """Requests a second with every slot always busy."""
        return self.completions(self.slots)

    def at(self, rate: float) -> MeanTimes:
        """Mean times at `rate`, from 0 to below saturation. They never fall as the rate grows."""
        if not 0 <= rate < self.saturation:
            raise ValueError(f"a rate of {rate} is not below the saturation of {self.saturation}")
        alone_s = self.prefill_s + self.later_stages_s
        if rate == 0:
            return MeanTimes(self.request_s + alone_s, self.step_s(1) / self.tokens_per_step if self.steps else 0.0)
        if not self.steps:  # prefills alone: M/D/1
            return MeanTimes(self.request_s + alone_s + self._prefill_wait_s(rate), 0.0)
        busy, idle, queued = _Chain.of(self, rate).means()
        # Little's law gives the time in a slot. Of this, prefill and what shares its step come before the first token.
        beside_s = self._beside_s(rate, idle)
        tpot_s = max(self.step_s(1), (busy / rate - alone_s - beside_s) / self.steps) / self.tokens_per_step
        load = rate / self.saturation
        slot_wait_s = queued / rate * _service_factor(self.slots, load, self.steps_cv2)
        slot_wait_s *= _pooling(self.slots, self.peers, load)
        wait_s = slot_wait_s + self._turn_wait_s(rate, busy, idle) + beside_s
        return MeanTimes(self.request_s + wait_s + alone_s, tpot_s, wait_s, 1 - idle, self._stall_s(rate))

    def _stall_s(self, rate: float) -> float:
        """Standard deviation of the mean time per token of a request: prompts of others stop it now and then.

        They come while it decodes as a Poisson process does, each for one prefill: sqrt(n) prefills over its steps.
        """
        decoding_s = self.steps * self.step_s(1) / max(1e-9, 1 - self._others_load(rate))
        stalls = self._others_load(rate) / self.prefill_s * decoding_s
        return sqrt(stalls * (1 + self.prefill_cv2)) * self.prefill_s / self.steps / self.tokens_per_step

    def scaled(self, prefill: float, decode: float) -> Replica:
        """With prefills and steps that many times as long."""
        return replace(
            self,
            prefill_s=self.prefill_s * prefill,
            later_stages_s=self.later_stages_s * prefill,
            decode_s=self.decode_s * decode,
            shorter=tuple((seconds * decode, share) for seconds, share in self.shorter),
            padded=tuple((slots, seconds * decode) for slots, seconds in self.padded),
            host_slot_s=self.host_slot_s * decode,
        )

    def _turn_wait_s(self, rate: float, busy: float, idle: float) -> float:
        """Mean wait, with a slot in hand, for prompts of the other slots and for the end of the step under way."""
        if self.slots == 1:
            return 0.0
        if self.mixes_phases:
            return 0.5 * self._mixed_step_s(rate, idle)
        others = rate * (self.slots - 1) / self.slots
        return self._prefill_wait_s(others) + 0.5 * self.step_s(max(1.0, busy)) * (1 - idle)

    def _beside_s(self, rate: float, idle: float) -> float:
        """Mean time, in a step that mixes phases, of the decode and the other prompts that a prompt shares it with."""
        if not self.mixes_phases or self.slots == 1:
            return 0.0
        return self.decode_s * (1 - idle) + self._others_load(rate) * self._mixed_step_s(rate, idle)

    def _mixed_step_s(self, rate: float, idle: float) -> float:
        """Mean length of the step that an arrival finds under way: a decode, and what came in the step before.

        Of lengths C = D + P n, n Poisson with mean C * rate: E[C^2] / E[C], as long steps are met more often.
        """
        load = self._others_load(rate)
        spread_s = (1 + self.prefill_cv2) * self.prefill_s * load / (1 - load**2)
        return self.decode_s * (1 - idle) / (1 - load) + spread_s

    def _others_load(self, rate: float) -> float:
        return rate * (self.slots - 1) / self.slots * self.prefill_s

    def _prefill_wait_s(self, rate: float) -> float:
        """Mean wait of M/G/1 (Pollaczek-Khinchine) where prefills are all the service."""
        load = rate * self.prefill_s
        return 0.5 * (1 + self.prefill_cv2) * load * self.prefill_s / (1 - load)

    def rate_within(self, limits: tuple[Limit, ...]) -> float:
        """The highest rate, up to MAX_LOAD of saturation, that keeps the limits; 0 when none does."""
        high = MAX_LOAD * self.saturation
        if not self.at(0).within(limits):
            return 0.0
        if self.at(high).within(limits):
            return high
        low = 0.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.at(middle).within(limits) else (low, middle)
        return low


@dataclass(slots=True)
class _Chain:
    """Birth-death chain of the requests present: births at `rate`, deaths as the slots that are busy complete."""

    load: float  # of saturation
    weight: float = 1.0  # of all slots busy and none waiting, as are all of these, up to one common factor
    total: float = 1.0
    busy: float = 0.0  # slots times weight
    empty: float = 1.0

    @classmethod
    def of(cls, replica: Replica, rate: float) -> _Chain:
        chain = cls(rate / replica.saturation)
        for n in range(1, replica.slots + 1):
            chain.weight *= rate / replica.completions(n)
            chain.total += chain.weight
            chain.busy += n * chain.weight
            if chain.total > HUGE:
                chain._scale(1 / chain.total)
        tail = chain.weight * chain.load / (1 - chain.load)  # all busy and some waiting: a geometric series
        chain.total += tail
        chain.busy += replica.slots * tail
        return chain

    def _scale(self, factor: float) -> None:
        self.weight *= factor
        self.total *= factor
        self.busy *= factor
        self.empty *= factor

    def means(self) -> tuple[float, float, float]:
        """Slots busy, the share of time with none busy, and requests that wait for a slot."""
        queued = self.weight * self.load / (1 - self.load) ** 2
        return self.busy / self.total, self.empty / self.total, queued / self.total


def _service_factor(servers: int, load: float, cv2: float) -> float:
    """Wait of M/G/c as a share of that of M/M/c: constant and exponential service mixed; beyond these (1 + cv2) / 2."""
    if cv2 >= 1:
        return 0.5 * (1 + cv2)
    return (1 - cv2) * _constant_service(servers, load) + cv2


def _pooling(slots: int, peers: int, load: float) -> float:
    """Wait for a slot as a share of that at one replica alone, the slots of all being nearly one pool.

    M/M/c waits load ** (sqrt(2 (c + 1)) - 1) / (c (1 - load)) services (Sakasegawa 1977).
    """
    return float(load ** (sqrt(2 * (slots * peers + 1)) - sqrt(2 * (slots + 1)))) / peers


def _constant_service(servers: int, load: float) -> float:
    """Wait of M/D/c as a share of that of M/M/c (Cosmetatos 1975); exactly one half for one server."""
    more = (1 - load) * (servers - 1) * (sqrt(4 + 5 * servers) - 2) / (16 * load * servers)
    return 0.5 * (1 + min(1.0, more))
