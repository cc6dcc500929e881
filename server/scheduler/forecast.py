"""Wait of a request that arrives now: the tokens ahead of it over the rates at which the engine computes tokens.

Tokens ahead are the prompts computed before the request's own, at the measured time of a prompt token, and, once the
batch is full, the tokens that sequences generate until enough of them have ended to give the request a place, at the
measured time of a step. Two corrections are measured as well: by how much waits exceeded their forecasts (by priority),
and the share of the engine that later requests took which are served first. Pure: times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import exp, inf
from typing import Any

from ..config.formats import SchedulingPolicy
from ..types import Request, StepReport
from .service import SERVICE_POLICIES, ServicePolicy
from .step_rates import StepRates
from .turns import Turns

FIRST_LENGTH = 64.0  # tokens that a sequence generates, assumed until sequences have ended
NUM_ENDS_KEPT = 64  # ended sequences that their mean length is measured over
NUM_ENDS_KNOWN = 8  # ended sequences from which their mean length counts as known
NUM_RATIOS_KEPT = 64  # waits of a priority that are compared with their forecasts
IN_TIME = 0.95  # share of these waits that the corrected forecast covers
MEMORY_S = 5.0  # time constant of the shares of priorities and tenants
LEAST_WINDOW_S = 0.5  # shortest time that a share is measured over
MOST_SHARE = 0.99
MAX_RETRY_S = 60.0  # client libraries ignore a longer Retry-After
RETURN_GAP = 0.9  # spacing of returning clients, as a share of the time that the engine needs for one
MAX_EXPECTED = 4096  # forecasts that wait to be compared
MAX_KEPT = 256  # priorities and tenants


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Work that a new request finds at an engine."""

    num_running: int  # sequences in the batch
    num_free_places: int  # of the batch
    num_ahead: int = 0  # waiting sequences that get a place before the request
    num_prompt_tokens: int = 0  # to compute before the request's own prompt

    @property
    def num_ends(self) -> int:
        """Number of sequences that must end before the request gets a place in the batch."""
        return max(0, self.num_ahead + 1 - self.num_free_places)


class Forecast:
    """Rates of one engine, measured from its step reports, and the forecasts made from them."""

    def __init__(self, policy: SchedulingPolicy = "fair") -> None:
        self.turns = Turns(SERVICE_POLICIES[policy])
        self._last: StepReport | None = None
        self.rates = StepRates()
        self._num_generated, self._num_ended = FIRST_LENGTH, 1.0
        self._margins = _Margins()
        self._shares = _Shares(SERVICE_POLICIES[policy])
        # By priority and tenant: the time until which returning clients fill the engine.
        self._booked: dict[tuple[int, str], float] = {}

    @property
    def tokens_per_sequence(self) -> float:
        """Mean number of tokens that a sequence generates."""
        return self._num_generated / self._num_ended

    def record(self, report: StepReport, num_generated: int, num_ended: int, firsts: Collection[str] = ()) -> None:
        """Measure a step: its time, the tokens that it generated and the sequences that it ended.

        `firsts` are the ids of requests that got their first token in it.
        """
        last, self._last = self._last, report
        if last is not None and report.step_id <= last.step_id:  # the engine was restarted
            self.turns.reset()
            self._margins.forget_expected()
        self.turns.record(report.served)
        for request_id in firsts:
            self._margins.compare(request_id, report.time)
        is_next = last is not None and last.step_id + 1 == report.step_id and last.num_running + last.num_waiting > 0
        begin = last.time if last is not None and is_next else report.start_time
        seconds = max(0.0, report.time - begin)
        if report.drafts:  # the rates are of steps of one token
            num_sequences = report.num_decode_tokens - sum(count for count, _ in report.drafts)
            seconds *= num_sequences / (num_sequences + sum(accepted for _, accepted in report.drafts))
        self.rates.record(1, report.num_prefill_tokens, report.num_decode_tokens, seconds)
        keep = (1 - 1 / NUM_ENDS_KEPT) ** num_ended
        self._num_generated = keep * self._num_generated + num_generated
        self._num_ended = keep * self._num_ended + num_ended

    def delay_s(self, load: EngineLoad) -> float:
        """Seconds until a request has a place in the batch and all prompts before its own have been computed."""
        num_places = max(1, load.num_running + load.num_free_places)
        num_decodes = load.num_ends * self.tokens_per_sequence / num_places
        return (
            num_decodes * self.rates.step_s + load.num_prompt_tokens * self._uncached_share * self.rates.prompt_token_s
        )

    def first_token_s(self, delay_s: float, num_prompt_tokens: int) -> float:
        """Seconds until the first token of a request with such a delay, which comes after the step under way."""
        return delay_s + num_prompt_tokens * self.rates.prompt_token_s + self.rates.step_s

    def lengthened_s(self, request: Request, delay_s: float) -> float:
        """Return such a delay, lengthened by later requests that are served before this one."""
        return delay_s / (1 - self._shares.before(request.priority, request.tenant, request.arrival_time))

    def corrected_s(self, request: Request, foreseen_s: float) -> float:
        """Return the wait that most of the latest requests of the priority did not exceed, given their forecast."""
        return foreseen_s * self._margins.ratio(request.priority)

    def admit(self, request: Request, first_s: float, service_s: float, waits: bool) -> None:
        """Count an admitted request: the forecast of its first token, its service time, and whether it must wait.

        Requests that need not wait are compared as well, so that a stalled engine is trusted again afterwards.
        """
        self._shares.add(request.priority, request.tenant, request.arrival_time, service_s)
        self._margins.expect(request.request_id, request.priority, request.arrival_time, first_s)
        if not waits:
            self._booked.clear()  # the engine is idle, so refused clients did not return at their times

    def service_s(self, load: EngineLoad, num_sequences: int, num_prompt_tokens: int) -> float:
        """Seconds of the engine for so many sequences with one prompt, in a full batch."""
        num_places = max(1, load.num_running + load.num_free_places)
        num_decodes = num_sequences * self.tokens_per_sequence / num_places
        return num_decodes * self.rates.step_s + num_prompt_tokens * self.rates.prompt_token_s

    def retry_after_s(self, request: Request, wait_s: float, service_s: float) -> float:
        """Seconds after which a refused request may return: not before `wait_s`, nor together with others.

        Clients of a flood that return together would be refused again, so returns are spaced within each priority
        and tenant.
        """
        now, line = request.arrival_time, (request.priority, request.tenant)
        after_s = min(MAX_RETRY_S, max(wait_s, self._booked.pop(line, now) - now))
        if self._num_ended >= NUM_ENDS_KNOWN:
            self._booked[line] = now + after_s + RETURN_GAP * service_s
        _bound(self._booked, MAX_KEPT)
        return after_s

    @property
    def _uncached_share(self) -> float:
        """Share of prompt tokens that the prefix cache does not hold."""
        last = self._last
        return 1.0 if last is None or not last.prefix_queries else 1 - last.prefix_hits / last.prefix_queries


class _Margins:
    """Ratios of waits to their forecasts, by priority."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[int, float, float]] = {}  # by request: priority, arrival, seconds foreseen
        self._ratios: dict[int, deque[float]] = {}

    def expect(self, request_id: str, priority: int, arrival: float, foreseen_s: float) -> None:
        self._expected[request_id] = priority, arrival, foreseen_s
        _bound(self._expected, MAX_EXPECTED)

    def forget_expected(self) -> None:
        self._expected.clear()

    def compare(self, request_id: str, now: float) -> None:
        """Compare a forecast with the first token, which came now."""
        expected = self._expected.pop(request_id, None)
        if expected is not None:
            priority, arrival, foreseen_s = expected
            self._ratios.setdefault(priority, deque(maxlen=NUM_RATIOS_KEPT)).append((now - arrival) / foreseen_s)
            _bound(self._ratios, MAX_KEPT)

    def ratio(self, priority: int) -> float:
        """Return the ratio that the share IN_TIME of the latest waits did not exceed; at least 1."""
        ratios = sorted(self._ratios.get(priority, (1.0,)))
        return max(1.0, ratios[int(len(ratios) * IN_TIME)])


class _Shares:
    """Shares of the engine's time that priorities and tenants took lately."""

    def __init__(self, policy: ServicePolicy) -> None:
        self._policy = policy
        self._taken: dict[tuple[int, str], tuple[float, float]] = {}  # seconds of the engine at a time
        self._began, self._latest = -inf, -inf

    def add(self, priority: int, tenant: str, now: float, service_s: float) -> None:
        if now - self._latest > 4 * MEMORY_S:
            self._began = now
        self._latest = now
        seconds = self._seconds((priority, tenant), now) + service_s
        self._taken.pop((priority, tenant), None)
        self._taken[priority, tenant] = seconds, now
        _bound(self._taken, MAX_KEPT)

    def before(self, priority: int, tenant: str, now: float) -> float:
        """Return the share of requests that pass one of `tenant` by the policy: urgent ones, tenants that took less."""
        own = self._seconds((priority, tenant), now)
        passing = 0.0
        for other in self._taken:
            seconds = self._seconds(other, now)
            is_urgent = self._policy.heeds_priority and other[0] < priority
            takes_turns = self._policy.by_tenant and other[0] == priority and other[1] != tenant
            if is_urgent or (takes_turns and seconds < own):
                passing += seconds
        window_s = max(LEAST_WINDOW_S, MEMORY_S * (1 - exp((self._began - now) / MEMORY_S)))
        return min(MOST_SHARE, passing / window_s)

    def _seconds(self, key: tuple[int, str], now: float) -> float:
        seconds, then = self._taken.get(key, (0.0, now))
        return seconds * exp((then - now) / MEMORY_S)


def _bound(kept: dict[Any, Any], most: int) -> None:
    """Drop the oldest entry of a dict that has one too many."""
    if len(kept) > most:
        del kept[next(iter(kept))]
