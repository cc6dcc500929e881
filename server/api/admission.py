"""Refusal of requests that would wait longer than the limits allow. Requests that were admitted are never touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from ..errors import Overloaded
from ..link.groups import EngineGroups
from ..link.journal import OpenSequence
from ..link.messages import Tokens
from ..scheduler.forecast import EngineLoad, Forecast
from ..scheduler.turns import Waiting
from ..types import Request, StepReport
from .config import ApiConfig


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A limit that a request would exceed at an engine."""

    rank: int
    what: str  # the request would wait for
    limit: str  # name of the setting
    wait_s: float  # that the request may wait
    limit_s: float
    room_s: float  # until the limit would hold, or nothing is ahead any more
    service_s: float  # that the engine needs for the request


class Admission:
    """Forecasts of all engines of a server, which must be ready."""

    def __init__(self, config: ApiConfig, engines: EngineGroups) -> None:
        self._config = config
        self._clients, self._num_prefill = engines.clients, engines.num_prefill
        self._forecasts = [Forecast(config.scheduling_policy) for _ in self._clients]
        for client, forecast in zip(self._clients, self._forecasts, strict=True):
            client.observe(partial(_record, forecast))

    @property
    def num_engines(self) -> int:
        return len(self._clients)

    def delay_s(self, rank: int) -> float:
        """Seconds that a request of priority 0 would wait now, behind all that wait with that priority."""
        return self._forecasts[rank].delay_s(self._load(rank, None))

    def num_queued_tokens(self, rank: int) -> int:
        """Prompt tokens that an engine computes before those of a request that comes now."""
        return self._load(rank, None).num_prompt_tokens

    def check(self, requests: Sequence[Request], rank: int | None) -> None:
        """Raise Overloaded when the first of these requests, which arrive together, would wait past a limit.

        `rank` is the engine that the client named; otherwise the engine with the shortest wait counts. A request with
        nothing ahead of it is always admitted, because waiting would not help.
        """
        if self._config.max_queue_delay is None and self._config.ttft_slo_ms is None:
            return
        up = [number for number, client in enumerate(self._clients) if client.is_up]
        up = [number for number in up if number < self._num_prefill] or up  # the engines that make first tokens
        ranks = [rank] if rank is not None else up or range(self.num_engines)
        refusals = [self._refusal(number, requests, 1 / len(ranks)) for number in ranks]
        first = min((each for each in refusals if each is not None), key=lambda each: each.wait_s, default=None)
        if first is not None and all(refusals):
            after_s = self._forecasts[first.rank].retry_after_s(requests[0], first.room_s, first.service_s)
            raise _overloaded(first, max(1, ceil(after_s)))

    def _refusal(self, rank: int, requests: Sequence[Request], chance: float) -> _Refusal | None:
        """Return the limit that these requests would exceed;

        None: count them, which come to this engine with that chance.
        """
        config, request = self._config, requests[0]
        forecast, load = self._forecasts[rank], self._load(rank, request)
        num_prompt = len(request.prompt_token_ids)
        delay_s = forecast.lengthened_s(request, forecast.delay_s(load))
        first_s = forecast.first_token_s(delay_s, num_prompt)
        service_s = forecast.service_s(load, len(requests), num_prompt)
        limits = (
            ("its place in the batch", "max_queue_delay", delay_s, config.max_queue_delay),
            ("its first token", "ttft_slo_ms", first_s, config.ttft_limit_s),
        )
        for what, limit, foreseen_s, limit_s in limits:
            wait_s = forecast.corrected_s(request, foreseen_s)
            if limit_s is not None and delay_s > 0 and wait_s > limit_s:
                room_s = min(wait_s - limit_s, delay_s)
                return _Refusal(rank, what, limit, wait_s, limit_s, room_s, service_s)
        forecast.admit(request, first_s, chance * service_s, waits=delay_s > 0)
        return None

    def _load(self, rank: int, newcomer: Request | None) -> EngineLoad:
        """Return the work ahead of a request; None stands for the last request of priority 0."""
        client, forecast = self._clients[rank], self._forecasts[rank]
        mean = forecast.tokens_per_sequence
        waiting, computing, to_come = list[Waiting](), 0, Counter[str]()
        for each in client.journal:
            if not each.is_placed:
                waiting.append(Waiting(each.request, _num_known(each)))
                continue
            to_come[each.request.tenant] += max(1, ceil(mean) - len(each.token_ids))
            if not each.num_tokens_here:
                computing += _num_known(each)
        if newcomer is None:
            ahead = [each for each in waiting if each.request.priority <= 0]
        else:
            ahead = forecast.turns.before(newcomer, waiting, to_come, mean, forecast.rates.prompt_token_s)
        num_free = _free_places(client.report, self._config.max_num_seqs)
        num_running = 0 if client.report is None else client.report.num_running
        return EngineLoad(num_running, num_free, len(ahead), computing + sum(each.num_tokens for each in ahead))


def _num_known(sequence: OpenSequence) -> int:
    """Number of tokens that an engine which takes over the sequence must compute."""
    return len(sequence.request.prompt_token_ids) + len(sequence.token_ids)


def _free_places(report: StepReport | None, max_num_seqs: int) -> int:
    """Free places of the batch, as far as there are blocks for sequences like the running ones."""
    if report is None or not report.num_running:
        return max_num_seqs
    num_used = report.num_blocks - 1 - report.num_free_blocks  # block 0 is padding
    by_blocks = report.num_free_blocks * report.num_running // max(1, num_used)
    return min(max_num_seqs - report.num_running, by_blocks)


def _overloaded(refusal: _Refusal, retry_after_s: int) -> Overloaded:
    return Overloaded(
        f"The server is busy: this request may wait {refusal.wait_s:.1f} s for {refusal.what}, and at most "
        f"{refusal.limit_s:g} s are allowed. Try again in {retry_after_s} s.",
        refusal.limit,
        retry_after_s,
    )


def _record(forecast: Forecast, turn: Tokens) -> None:
    num_ended = sum([event.finish_reason is not None for event in turn.events])
    firsts = [event.request_id for event in turn.events if event.index == 0]
    forecast.record(turn.report, turn.num_generated, num_ended, firsts)
