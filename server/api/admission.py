"""Refuses at the door what would wait too long. Foresees by scheduler/forecast.py; never touches what was taken.

Urgent requests are refused last: who has a lower priority waits behind them, also behind those foreseen to come, and so
is past the limit earlier. Of tenants who take turns each is refused for its own queue and what is served in between,
not for another's long one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from math import ceil
from sys import maxsize

from neuronserve.server.api.config import ApiConfig
from neuronserve.server.config.formats import Batching
from neuronserve.server.errors import Overloaded
from neuronserve.server.link.hub.engines import AnyEngines, seen
from neuronserve.server.link.journal import OpenSequence
from neuronserve.server.link.messages import Tokens
from neuronserve.server.scheduler.batching import POLICIES
from neuronserve.server.scheduler.comebacks import Comebacks
from neuronserve.server.scheduler.forecast import EngineLoad, Forecast
from neuronserve.server.scheduler.lengths import Running
from neuronserve.server.scheduler.turns import Waiting
from neuronserve.server.types import Request, StepReport

FRESH = Running(0, maxsize, "")  # a sequence that has just been placed


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What an engine says to a request that would wait too long."""

    rank: int
    what: str  # it waits for
    limit: str  # is past
    most_s: float  # that it may take
    limit_s: float  # that it is allowed to
    wait_s: float  # until there is room, if nobody else comes
    service_s: float  # that the engine takes for it; 0 while lengths are not known


class Admission:
    """Of all engines of a server, which must be ready."""

    def __init__(self, config: ApiConfig, engines: AnyEngines, batching: Batching) -> None:
        self._config = config
        self._clients = seen(engines)
        self._forecasts = [Forecast(config.max_num_batched_tokens, POLICIES[batching]) for _ in self._clients]
        for client, forecast in zip(self._clients, self._forecasts, strict=True):
            client.observe(partial(_record, forecast))
        self._comebacks = [Comebacks() for _ in self._clients]

    @property
    def num_engines(self) -> int:
        return len(self._clients)

    def delay_s(self, rank: int) -> float:
        """Seconds that a request of priority 0 which comes now, of the tenant served last, would wait for a place."""
        return self._forecasts[rank].delay_s(self._load(rank, None))

    def check(self, requests: Sequence[Request], rank: int | None) -> None:
        """Raise Overloaded when the first of these, which come together, would wait past a limit.

        `rank` is the engine that they ask for; otherwise the one that would be first counts. Who has nobody ahead is
        taken in any case: waiting would not help.
        """
        if self._config.max_queue_delay is None and self._config.ttft_slo_ms is None:
            return
        up = [number for number, client in enumerate(self._clients) if client.is_up]
        ranks = [rank] if rank is not None else up or range(self.num_engines)
        refusals = [self._refusal(number, requests, 1 / len(ranks)) for number in ranks]
        for number in ranks:
            self._comebacks[number].come(requests[0])
        first = min((each for each in refusals if each is not None), key=lambda each: each.wait_s, default=None)
        if first is not None and all(refusals):
            after_s = self._comebacks[first.rank].book(requests[0], first.wait_s, first.service_s)
            raise _overloaded(first, max(1, ceil(after_s)))

    def _refusal(self, rank: int, requests: Sequence[Request], chance: float) -> _Refusal | None:
        """What an engine would say to requests; None when they are welcome, and will be its own with that chance."""
        config, request = self._config, requests[0]
        forecast, load = self._forecasts[rank], self._load(rank, request)
        num_prompt = len(request.prompt_token_ids)
        delay_s, first_s = forecast.delay_s(load), forecast.first_token_s(load, num_prompt)
        service_s = forecast.service_s(load, len(requests), num_prompt)
        limits = (
            ("its place in the batch", "max_queue_delay", delay_s, config.max_queue_delay),
            ("its first token", "ttft_slo_ms", first_s, config.ttft_limit_s),
        )
        for what, limit, foreseen_s, limit_s in limits:
            most_s = forecast.most_s(request, foreseen_s)
            if limit_s is not None and delay_s > 0 and most_s > limit_s:
                known_s = service_s if forecast.knows_lengths else 0.0
                wait_s = min(most_s - limit_s, forecast.mean_delay_s(load))
                return _Refusal(rank, what, limit, most_s, limit_s, wait_s, known_s)
        for each in requests:
            forecast.lengths.expect(each.request_id, each.tenant)
        forecast.inflow.add(request.priority, request.tenant, request.arrival_time, chance * service_s)
        if delay_s > 0:
            forecast.expect(request, first_s)
        return None

    def _load(self, rank: int, newcomer: Request | None) -> EngineLoad:
        """What a request finds at an engine; None: one of priority 0 for which all of that priority are ahead."""
        client, forecast = self._clients[rank], self._forecasts[rank]
        report = client.report
        mean = forecast.tokens_per_sequence
        waiting, computing, to_come = list[Waiting](), list[int](), Counter[str]()
        for each in client.journal:
            if not each.is_placed:
                waiting.append(Waiting(each.request, _num_known(each)))
                continue
            to_come[each.request.tenant] += max(1, ceil(mean) - len(each.token_ids))
            if not each.num_tokens_here:
                computing.append(_num_known(each))
        share_before = 0.0
        if newcomer is None:
            ahead = [each for each in waiting if each.request.priority <= 0]
        else:
            ahead = forecast.turns.before(newcomer, waiting, to_come, mean)
            share_before = forecast.inflow.share_before(newcomer.priority, newcomer.tenant, newcomer.arrival_time)
        num_free = _free_places(report, self._config.max_num_seqs)
        load = EngineLoad(
            forecast.ends(chain(_running(client.journal), repeat(FRESH, num_free))),
            0 if report is None else report.num_running,
            num_free,
            len(ahead),
            sum(computing) + sum(each.num_tokens for each in ahead),
            len(computing) + len(ahead),
            share_before,
        )
        if newcomer is None:
            return load
        return _with_due(load, newcomer.arrival_time + forecast.delay_s(load), waiting, ahead)


def _with_due(load: EngineLoad, by: float, waiting: Sequence[Waiting], ahead: Sequence[Waiting]) -> EngineLoad:
    """With those ahead, too, who will have been promised to be served by then; else `ahead` of `waiting` are."""
    passed = {each.request.request_id for each in ahead}
    for each in waiting:
        if each.request.due_time <= by and each.request.request_id not in passed:
            load = load.behind(1, each.num_tokens)
    return load


def _num_known(sequence: OpenSequence) -> int:
    """Tokens of a sequence that an engine which begins with it has to compute."""
    return len(sequence.request.prompt_token_ids) + len(sequence.token_ids)


def _free_places(report: StepReport | None, max_num_seqs: int) -> int:
    """Of the batch, as far as there are blocks for sequences like those that run."""
    if report is None or not report.num_running:
        return max_num_seqs
    num_used = report.num_blocks - 1 - report.num_free_blocks  # block 0 is padding
    by_blocks = report.num_free_blocks * report.num_running // max(1, num_used)
    return min(max_num_seqs - report.num_running, by_blocks)


def _running(journal: Iterable[OpenSequence]) -> Iterator[Running]:
    for each in journal:
        if each.is_placed:
            yield Running(len(each.token_ids), each.request.sampling.max_tokens, each.request.tenant)


def _overloaded(refusal: _Refusal, retry_after_s: int) -> Overloaded:
    return Overloaded(
        f"The server is busy: this request may wait {refusal.most_s:.1f} s for {refusal.what}, and at most "
        f"{refusal.limit_s:g} s are allowed. Try again in {retry_after_s} s.",
        refusal.limit,
        retry_after_s,
    )


def _record(forecast: Forecast, turn: Tokens) -> None:
    for event in turn.events:
        if event.token_id is not None:
            forecast.lengths.generated(event.request_id, event.index + 1, event.finish_reason is not None)
    num_ended = sum([event.finish_reason is not None for event in turn.events])
    firsts = [event.request_id for event in turn.events if event.index == 0]
    forecast.record(turn.report, turn.num_generated, num_ended, firsts)
