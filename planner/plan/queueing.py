"""Queueing model of one replica: a prompt stops all decoding, slots are few, arrivals are Poisson.

Neuron encodes prompts one at a time and never together with a decode step, so a replica is one server that alternates.
A scheduler that mixes phases runs the prompts that wait, and one decode, before it gives out any of their tokens.
Formulas with their reasons: docs/internals/planner.md. Neither hardware nor prices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import hypot, inf, log, sqrt

import numpy as np

from neuronserve.planner.plan.batches import StaticBatches, gated, longest_of
from neuronserve.planner.plan.formulas import pooling, service_factor
from neuronserve.planner.plan.times import Limit, MeanTimes, Wait
from neuronserve.server.scheduler.batching import POLICIES, BatchingPolicy
from neuronserve.server.workload.workload import FloatArray

MAX_LOAD = 0.9  # share of saturation above which no plan is made: mean waits there grow without bound
BISECTIONS = 20  # to a millionth of saturation


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
    policy: BatchingPolicy = POLICIES["neuron"]  # where it mixes phases, decodes have one bucket
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
        steps = self.steps + (
            self.policy.mixes_phases and busy > 1 and self.steps > 0
        )  # others decode beside the prompt
        return busy / (busy * self.prefill_s + self.later_stages_s + steps * self.step_s(busy))

    @property
    def saturation(self) -> float:
        """Requests a second with every slot always busy."""
        return self.completions(self.slots)

    def at(self, rate: float) -> MeanTimes:
        """Mean times at `rate`, from 0 to below saturation.

        They never fall as the rate grows, except for the TTFT of a policy by which prompts wait for company.
        """
        if not 0 <= rate < self.saturation:
            raise ValueError(f"a rate of {rate} is not below the saturation of {self.saturation}")
        alone_s = self.prefill_s + self.later_stages_s
        if rate == 0:
            return MeanTimes(self.request_s + alone_s, self.step_s(1) / self.tokens_per_step if self.steps else 0.0)
        if not self.steps:  # prefills alone: M/D/1
            return MeanTimes(self.request_s + alone_s + self._prefill_wait_s(rate), 0.0)
        if self.policy.max_waiting_steps == inf and self.slots > 1:
            return self._static(rate)
        chain = _Chain.of(self, rate)
        busy, idle, queued = chain.means()
        turn_s, beside_s = self._turn_wait_s(rate, busy, idle), self._beside_s(rate, idle)
        if self.policy.waiting_ratio and self.slots > 1:
            gate_s, together = gated(self.policy, rate, busy / (1 - idle), self.prefill_s, self.step_s(max(1.0, busy)))
            turn_s, beside_s = gate_s * (1 - idle), (together - 1) * self.prefill_s * (1 - idle)
        # Little's law gives the time in a slot. Of this, prefill and what shares its step come before the first token.
        tpot_s = max(self.step_s(1), (busy / rate - alone_s - beside_s) / self.steps) / self.tokens_per_step
        load = rate / self.saturation
        slot_wait_s = queued / rate * service_factor(self.slots, load, self.steps_cv2)
        slot_wait_s *= pooling(self.slots, self.peers, load)
        # As many wait for a slot as the pool of all slots lets; each of them waits for its turn as others do.
        held = min(1 - idle, queued * (1 - load) / load * pooling(self.slots, self.peers, load) * self.peers)
        soon_s = (turn_s + beside_s) / (1 - idle)
        waits = (
            *self._turn_waits(1 - idle - held, soon_s, rate),
            Wait(held, slot_wait_s / held if held else 0.0, soon_s),
        )
        wait_s = slot_wait_s + turn_s + beside_s
        tpot_sd_s = hypot(self._stall_s(rate), self._step_spread_s(busy, chain.spread))
        return MeanTimes(self.request_s + wait_s + alone_s, tpot_s, wait_s, waits, tpot_sd_s)

    def _turn_waits(self, share: float, mean_s: float, rate: float) -> tuple[Wait, ...]:
        """Waits of mean `mean_s` of those with a slot in hand: for a step, and where phases are apart for prompts."""
        stopped = 0.0 if self.policy.mixes_phases else share * self._others_load(rate)
        if self.policy.waiting_ratio or not stopped:
            return (Wait(share, mean_s),)
        step_s = min(mean_s, 0.5 * self.step_s(1))
        more_s = (mean_s - step_s) * share / stopped
        return Wait(share - stopped, step_s, is_even=True), Wait(stopped, more_s, step_s, is_even=True)

    def _step_spread_s(self, busy: float, spread: float) -> float:
        """Standard deviation of the mean step of a request by how many slots are busy, of standard deviation `spread`.

        Their mean over the time of one service has 2/3 of their variance, services being alike as in M/D/inf.
        """
        sd = sqrt(2 / 3) * spread
        few, many = max(1.0, busy - sd), min(float(self.slots), busy + sd)
        return max(0.0, self.step_s(many) - self.step_s(few)) / 2 / self.tokens_per_step

    def _static(self, rate: float) -> MeanTimes:
        """Mean times where a batch ends before the next begins."""

        def batch_s(size: float) -> float:
            steps = self.steps * longest_of(size, self.steps_cv2)
            return size * self.prefill_s + self.later_stages_s + steps * self.step_s(size)

        batches = StaticBatches.at(rate, self.slots, batch_s)
        size, waits = batches.seen_size, batches.waits
        wait_s = sum(wait.share * (wait.least_s + wait.mean_s) for wait in waits)
        first_s = size * self.prefill_s + self.later_stages_s
        spread_s = self.step_s(min(float(self.slots), size + sqrt(size))) - self.step_s(size)
        tokens = self.tokens_per_step
        return MeanTimes(
            self.request_s + wait_s + first_s, self.step_s(size) / tokens, wait_s, waits, spread_s / tokens
        )

    def _stall_s(self, rate: float) -> float:
        """Standard deviation of the mean time per token of a request: prompts of others stop it now and then.

        They come while it decodes as a Poisson process does, each for one prefill, in which more of them come: the
        variance is that of a busy period that begins with all its steps, rate E[P^2] steps / (1 - load)^3.
        """
        left = max(1e-3, 1 - self._others_load(rate))
        stalls = self._others_load(rate) / self.prefill_s * self.steps * self.step_s(1) / left**3
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
        if self.policy.mixes_phases:
            return 0.5 * self._mixed_step_s(rate, idle)
        others = rate * (self.slots - 1) / self.slots
        return self._prefill_wait_s(others) + 0.5 * self.step_s(max(1.0, busy)) * (1 - idle)

    def _beside_s(self, rate: float, idle: float) -> float:
        """Mean time, in a step that mixes phases, of the decode and the other prompts that a prompt shares it with."""
        if not self.policy.mixes_phases or self.slots == 1:
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


@dataclass(frozen=True, slots=True)
class _Chain:
    """Birth-death chain of the requests present: births at `rate`, deaths as the slots that are busy complete."""

    load: float  # of saturation
    weight: float  # share of the time with all slots busy and none waiting
    busy: float  # mean slots
    spread: float  # standard deviation of them
    idle: float  # share of the time with none busy

    @classmethod
    def of(cls, replica: Replica, rate: float) -> _Chain:
        load = rate / replica.saturation
        numbers, deaths = _deaths(replace(replica, peers=1))
        logs = numbers * log(rate) - deaths  # of the weights of 0, 1, ... slots busy and none waiting
        weights = np.exp(logs - logs.max())
        full = float(weights[-1])
        tail = full * load / (1 - load)  # all busy and some waiting: a geometric series
        total = float(weights.sum()) + tail
        busy = (float(numbers @ weights) + replica.slots * tail) / total
        squares = (float((numbers * numbers) @ weights) + replica.slots**2 * tail) / total
        return cls(load, full / total, busy, sqrt(max(0.0, squares - busy**2)), float(weights[0]) / total)

    def means(self) -> tuple[float, float, float]:
        """Slots busy, the share of time with none busy, and requests that wait for a slot."""
        return self.busy, self.idle, self.weight * self.load / (1 - self.load) ** 2


@lru_cache(maxsize=1024)  # a replica is asked at many rates
def _deaths(replica: Replica) -> tuple[FloatArray, FloatArray]:
    """0, 1, ... slots busy, and the logarithm of the product of the completions of as many."""
    logs = [log(replica.completions(n)) for n in range(1, replica.slots + 1)]
    return np.arange(replica.slots + 1, dtype=np.float64), np.concatenate(([0.0], np.cumsum(logs)))
