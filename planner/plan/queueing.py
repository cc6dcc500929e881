"""Queueing model of one replica: a prompt stops all decoding, slots are few, arrivals are Poisson.

Neuron encodes prompts one at a time and never together with a decode step, so a replica is one server that alternates.
A scheduler that mixes phases runs the waiting prompts and one decode before it returns any of their tokens.
Formulas with their reasons: docs/internals/planner.md. The model knows neither hardware nor prices.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import hypot, inf, log, sqrt

import numpy as np

from ...server.scheduler.batching import POLICIES, BatchingPolicy
from ...workload.workload import FloatArray
from .batches import StaticBatches, gated, longest_of
from .formulas import pooling, service_factor
from .times import Limit, MeanTimes, Wait

MAX_LOAD = 0.9  # highest planned share of saturation: above it mean waits grow without bound
BISECTIONS = 13  # to a ten-thousandth of saturation


@dataclass(frozen=True, slots=True)
class Replica:
    """A tensor-parallel group that serves requests of one kind. All rates are requests a second of this replica."""

    prefill_s: float  # of one prompt
    decode_s: float  # of one step, all slots, over their full length
    slots: int
    output_tokens: float  # of a mean request; the prefill makes the first
    prefill_cv2: float = 0.0  # squared coefficient of variation of prefills, whose mean is `prefill_s`
    steps_cv2: float = 0.0  # the same of the steps of a request
    peers: int = field(default=1, compare=False)  # replicas; a request goes to the least loaded one
    later_stages_s: float = 0.0  # seconds of a prompt after `prefill_s`, when the next may already be encoded
    shorter: tuple[tuple[float, float], ...] = ()  # seconds of a step on each bucket below, share of contexts within it
    policy: BatchingPolicy = POLICIES["neuron"]  # if it mixes phases, decodes have one bucket
    request_s: float = 0.0  # on the host, before a prompt is in the queue
    host_slot_s: float = 0.0  # host time of a step for each busy slot beyond the first
    padded: tuple[tuple[int, float], ...] = ()  # slots of smaller graphs and seconds of their steps, ascending
    tokens_per_step: float = 1.0  # tokens of a slot in a step: more than one with speculative decoding

    @property
    def steps(self) -> float:
        """Decode steps of a request."""
        return (self.output_tokens - 1) / self.tokens_per_step

    @property
    def _is_static(self) -> bool:
        return self.policy.max_waiting_steps == inf

    def step_s(self, busy: float) -> float:
        """Return mean seconds of a decode step of `busy` slots. It runs on the bucket of the longest of them."""
        return self._device_step_s(busy) + self.host_slot_s * max(0.0, busy - 1)

    def _device_step_s(self, busy: float) -> float:
        if not self.shorter:
            return (
                next((s for slots, s in self.padded if slots >= busy), self.decode_s) if self.padded else self.decode_s
            )
        below, mean = 0.0, 0.0
        contexts = 1.0 if self._is_static else busy  # those of a static batch grow together
        for seconds, share in (*self.shorter, (self.decode_s, 1.0)):
            within = share**contexts
            mean, below = mean + seconds * (within - below), within
        return mean

    def completions(self, busy: int) -> float:
        """Return requests a second with `busy` slots always busy: prefills run one by one, steps are shared."""
        steps = self.steps + (
            self.policy.mixes_phases and busy > 1 and self.steps > 0
        )  # others decode beside the prompt
        return busy / (busy * self.prefill_s + self.later_stages_s + steps * self.step_s(busy))

    @property
    def saturation(self) -> float:
        """Requests a second with every slot always busy."""
        return self.completions(self.slots)

    def at(self, rate: float, peers: int = 0) -> MeanTimes:
        """Return mean times at `rate`, from 0 to below saturation, as one of `peers` replicas (0: as many as it has).

        They never fall as the rate grows, except for the TTFT of a policy that encodes prompts together.
        """
        peers = peers or self.peers
        if not 0 <= rate < self.saturation:
            raise ValueError(f"a rate of {rate} is not below the saturation of {self.saturation}")
        alone_s = self.prefill_s + self.later_stages_s
        if rate == 0:
            return MeanTimes(self.request_s + alone_s, self.step_s(1) / self.tokens_per_step if self.steps else 0.0)
        if not self.steps:  # prefills alone: M/D/1
            return MeanTimes(self.request_s + alone_s + self._prefill_wait_s(rate), 0.0)
        if self._is_static and self.slots > 1:
            return self._static(rate, peers)
        chain = _Chain.of(self, rate)
        busy, idle, queued = chain.means()
        turn_s, beside_s = self._turn_wait_s(rate, busy, idle), self._beside_s(rate, idle)
        if self.policy.waiting_ratio and self.slots > 1:
            gate_s, together = gated(self.policy, rate, busy / (1 - idle), self.prefill_s, self.step_s(max(1.0, busy)))
            turn_s, beside_s = gate_s * (1 - idle), (together - 1) * self.prefill_s * (1 - idle)
        # Little's law gives the time in a slot. The prefill and the rest of its step precede the first token.
        tpot_s = self._evened(max(self.step_s(1), (busy / rate - alone_s - beside_s) / self.steps), rate, busy, peers)
        held, held_s = self._slot_wait(rate, queued, 1 - idle, peers)
        soon_s = (turn_s + beside_s) / (1 - idle)  # a request with a slot still waits for its turn, as the others do
        waits = (
            *self._turn_waits(1 - idle - held, soon_s, rate),
            Wait(held, held_s, soon_s, is_even=self.slots == 1 and peers > 1),
        )
        wait_s = held * held_s + turn_s + beside_s
        tpot_sd_s = hypot(self._stall_s(rate), self._step_spread_s(busy, chain.spread))
        return MeanTimes(self.request_s + wait_s + alone_s, tpot_s / self.tokens_per_step, wait_s, waits, tpot_sd_s)

    def _evened(self, step_s: float, rate: float, busy: float, peers: int) -> float:
        """Return the mean time of a step with the prompts of others, from that of a lone replica.

        The least loaded replica gets the next request, so that prompts come more evenly than a Poisson process. Evenly
        spaced ones would take their share of the time from steps of the mean number of slots.
        """
        even_s = min(step_s, self.step_s(max(1.0, busy)) / (1 - self._others_load(rate)))
        return even_s + (step_s - even_s) / peers

    def _slot_wait(self, rate: float, queued: float, most: float, peers: int) -> tuple[float, float]:
        """Return the share of requests that wait for a slot, at most `most`, and how long they do.

        `queued` requests wait at a single replica. Of several, the least loaded gets the request. Its wait is that for
        a slot of any replica, longer by as much as the next slot of one replica comes later than the next of all.
        """
        load, every = rate / self.saturation, self.slots * peers
        held = min(most, queued * (1 - load) / load * pooling(self.slots, peers, load))
        any_s = service_factor(every, load, self.steps_cv2) / (self.saturation * peers * (1 - load))
        service_s = self.slots / self.saturation
        return held, any_s + service_s / (self.slots + 1) - service_s / (every + 1)

    def _turn_waits(self, share: float, mean_s: float, rate: float) -> tuple[Wait, ...]:
        """Return waits of requests with a slot, of mean `mean_s`: for a step and, with separate phases, for prompts."""
        stopped = 0.0 if self.policy.mixes_phases else share * self._others_load(rate)
        if self.policy.waiting_ratio or not stopped:
            return (Wait(share, mean_s),)
        step_s = min(mean_s, 0.5 * self.step_s(1))
        more_s = (mean_s - step_s) * share / stopped
        return Wait(share - stopped, step_s, is_even=True), Wait(stopped, more_s, step_s, is_even=True)

    def _step_spread_s(self, busy: float, spread: float) -> float:
        """Return the standard deviation of a request's mean step; busy slots have the standard deviation `spread`.

        The mean of busy slots over one service has 2/3 of their variance if services are equal, as in M/D/inf.
        """
        sd = sqrt(2 / 3) * spread
        few, many = max(1.0, busy - sd), min(float(self.slots), busy + sd)
        return max(0.0, self.step_s(many) - self.step_s(few)) / 2 / self.tokens_per_step

    def _static(self, rate: float, peers: int) -> MeanTimes:
        """Return mean times if a batch ends before the next begins."""

        def batch_s(size: float) -> float:
            steps = self.steps * longest_of(size, self.steps_cv2)
            return size * self.prefill_s + self.later_stages_s + steps * self.step_s(size)

        batches = StaticBatches.at(rate, self.slots, batch_s, peers)
        size, waits = batches.seen_size, batches.waits
        wait_s = sum(wait.share * (wait.least_s + wait.mean_s) for wait in waits)
        first_s = size * self.prefill_s + self.later_stages_s
        spread_s = self.step_s(min(float(self.slots), size + sqrt(size))) - self.step_s(size)
        tokens = self.tokens_per_step
        return MeanTimes(
            self.request_s + wait_s + first_s, self.step_s(size) / tokens, wait_s, waits, spread_s / tokens
        )

    def _stall_s(self, rate: float) -> float:
        """Return the standard deviation of a request's mean time per token, which prompts of other requests cause.

        Prompts arrive as a Poisson process while the request decodes. Each stops it for one prefill, in which more may
        arrive. The variance is that of a busy period that begins with all its steps: rate E[P^2] steps / (1 - load)^3.
        """
        left = max(1e-3, 1 - self._others_load(rate))
        stalls = self._others_load(rate) / self.prefill_s * self.steps * self.step_s(1) / left**3
        return sqrt(stalls * (1 + self.prefill_cv2)) * self.prefill_s / self.steps / self.tokens_per_step

    def scaled(self, prefill: float, decode: float) -> Replica:
        """Return the replica with prefills and steps scaled by these factors."""
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
        """Return the mean wait of a request with a slot: for prompts of other slots and the end of the current step."""
        if self.slots == 1:
            return 0.0
        if self.policy.mixes_phases:
            return 0.5 * self._mixed_step_s(rate, idle)
        others = rate * (self.slots - 1) / self.slots
        return self._prefill_wait_s(others) + 0.5 * self.step_s(max(1.0, busy)) * (1 - idle)

    def _beside_s(self, rate: float, idle: float) -> float:
        """Return the mean time of the decode and the other prompts that share a mixed step with a prompt."""
        if not self.policy.mixes_phases or self.slots == 1:
            return 0.0
        return self.decode_s * (1 - idle) + self._others_load(rate) * self._mixed_step_s(rate, idle)

    def _mixed_step_s(self, rate: float, idle: float) -> float:
        """Return the mean length of the step that an arrival finds: a decode and the prompts of the step before.

        Lengths are C = D + P n, with n Poisson of mean C * rate. The mean is E[C^2] / E[C], as arrivals meet long steps
        more often.
        """
        load = self._others_load(rate)
        spread_s = (1 + self.prefill_cv2) * self.prefill_s * load / (1 - load**2)
        return self.decode_s * (1 - idle) / (1 - load) + spread_s

    def _others_load(self, rate: float) -> float:
        return rate * (self.slots - 1) / self.slots * self.prefill_s

    def _prefill_wait_s(self, rate: float) -> float:
        """Return the mean wait of M/G/1 (Pollaczek-Khinchine) if prefills are the only service."""
        load = rate * self.prefill_s
        return 0.5 * (1 + self.prefill_cv2) * load * self.prefill_s / (1 - load)

    def rate_within(self, limits: tuple[Limit, ...]) -> float:
        """Return the highest rate, up to MAX_LOAD of saturation, that keeps the limits; 0 if none does."""
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


@dataclass(frozen=True, slots=True)
class _Chain:
    """Birth-death chain of open requests: births at `rate`, deaths as busy slots complete."""

    load: float  # of saturation
    weight: float  # share of the time with all slots busy and none waiting
    busy: float  # mean slots
    spread: float  # standard deviation of them
    idle: float  # share of the time with none busy

    @classmethod
    def of(cls, replica: Replica, rate: float) -> _Chain:
        load = rate / replica.saturation
        numbers, deaths = _deaths(replica)
        logs = numbers * log(rate) - deaths  # of the weights of 0, 1, ... slots busy and none waiting
        weights = np.exp(logs - logs.max())
        full = float(weights[-1])
        tail = full * load / (1 - load)  # all busy and some waiting: a geometric series
        total = float(weights.sum()) + tail
        busy = (float(numbers @ weights) + replica.slots * tail) / total
        squares = (float((numbers * numbers) @ weights) + replica.slots**2 * tail) / total
        return cls(load, full / total, busy, sqrt(max(0.0, squares - busy**2)), float(weights[0]) / total)

    def means(self) -> tuple[float, float, float]:
        """Return mean busy slots, the share of time with none busy, and requests that wait for a slot."""
        return self.busy, self.idle, self.weight * self.load / (1 - self.load) ** 2


@lru_cache(maxsize=1024)  # a replica is computed at many rates
def _deaths(replica: Replica) -> tuple[FloatArray, FloatArray]:
    """Return 0, 1, ... busy slots, and the logarithm of the product of the completions up to each."""
    logs = [log(replica.completions(n)) for n in range(1, replica.slots + 1)]
    return np.arange(replica.slots + 1, dtype=np.float64), np.concatenate(([0.0], np.cumsum(logs)))
