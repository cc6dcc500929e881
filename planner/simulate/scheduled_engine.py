"""Simulated engine with the server's own Scheduler and KVCacheManager; steps are charged, not computed.

Prompts get synthetic token ids, so the prefix cache works on the prefixes that the workload declares. Decode steps that
the scheduler knows to be equal are taken in one run, which changes no record. Drafts are accepted by chance.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import inf

from ...server.clock import NS
from ...server.config import CacheConfig, SchedulerConfig
from ...server.config.speculation import is_accepted
from ...server.cost.links import HandOver
from ...server.cost.pricer import StepPricer
from ...server.kv_cache.manager import KVCacheManager
from ...server.kv_cache.stores import Peer
from ...server.kv_cache.tiers import PrefillRate, Tiers
from ...server.scheduler.router import Router
from ...server.scheduler.scheduler import Scheduler
from ...server.scheduler.speculative import scheduler_of
from ...server.types import Request, SampledToken, SamplingParams, ScheduledSeq, StepPlan, StepResult, TokenEvent
from ...workload.slo import Slo
from ...workload.workload import Workload
from .decode_run import RunScheduler
from .records import NEVER, SHARES, Carried, EngineTotals, Records

NO_SLO = Slo()


def no_copy(source: int, target: int) -> None:
    """Copy no block: simulated ones have no contents."""


class ScheduledEngine:
    """Implements neuronserve.planner.simulate.records.Engine."""

    def __init__(
        self, config: SchedulerConfig, cache: CacheConfig, pricer: StepPricer, workload: Workload, records: Records
    ) -> None:
        self._config, self._cache = config, cache
        self._rate = None if config.speculation is None else config.speculation.acceptance_rate
        self.num_open = 0
        self.totals, self.end_ns = EngineTotals(), NEVER
        self.is_stopped = False  # its instance has failed
        self.is_step_by_step = False  # plan and apply every step, also in a run of equal ones
        self.slo = NO_SLO  # objectives of all requests
        self.hands_over, self.handed = False, list[int]()  # divided requests end here with their first token
        self.copies = HandOver()  # price of blocks from `peers`
        self.peers: tuple[tuple[Peer, ...], ...] = ((), ())  # engines whose blocks and whose states this one copies
        self.router: Router | None = None  # receives every token and every end, at the end of a step or a run
        self._pricer, self._workload, self._records = pricer, workload, records
        self._arrived: list[int] = []
        self._last_ns: dict[int, int] = {}  # time of the last token of each open request that has one
        self._tokens: dict[str, SampledToken] = {}  # token of each open request in every step: -1 - its index
        # `_num_steps` equal steps of `_step_ns` from `_start_ns` on; `_decode_ns` of each are its decode.
        self._plan: StepPlan | None = None
        self._start_ns = self._step_ns = self._decode_ns = self._num_steps = 0
        self._charges: list[tuple[int, int]] = []  # of the planned step: (request, ns) of its prompts and copies
        self._takes_arrivals = False  # an arrival could be admitted before the last of these steps

    @cached_property
    def scheduler(self) -> Scheduler:
        """Scheduler, made with the first request: thousands of engines may never get one."""
        made = RunScheduler if self._rate is None else scheduler_of
        return made(self._config, self.cache)

    @cached_property
    def cache(self) -> KVCacheManager:
        """Books of the blocks."""
        blocks, states = (Tiers((), PrefillRate(), peers=each) if each else None for each in self.peers)
        return KVCacheManager(self._cache, blocks, states, no_copy)

    @property
    def _runs(self) -> RunScheduler | None:
        """The scheduler, if it applies equal steps at once; steps with drafts are not equal."""
        return self.scheduler if isinstance(self.scheduler, RunScheduler) and not self.is_step_by_step else None

    def num_output(self, index: int) -> int:
        """Return the tokens that are generated for a request."""
        left = self._config.max_model_len - int(self._workload.input_len[index])
        return min(int(self._workload.output_len[index]), left)

    def is_divided(self, index: int) -> bool:
        """Return whether a request is handed over after its first token."""
        return int(self._workload.input_len[index]) >= self._cache.block_size and self.num_output(index) > 1

    def num_tokens_unreported(self, now_ns: int) -> int:
        """Return the tokens that the current run has made by `now_ns`, before its end."""
        if self._plan is None or self._num_steps == 1:
            return 0
        return len(self._plan.decode) * ((now_ns - self._start_ns) // self._step_ns)

    def add(self, index: int, now_ns: int) -> None:
        self._arrived.append(index)
        self.num_open += 1
        if self._takes_arrivals:
            self._num_steps = min(self._num_steps, -(-(now_ns - self._start_ns) // self._step_ns))
            self.end_ns = self._start_ns + self._num_steps * self._step_ns

    def plan(self, now_ns: int) -> None:
        if self.is_stopped:
            return
        for index in self._arrived:
            request = self._request(index)
            self._tokens[request.request_id] = SampledToken(-1 - index)
            self.scheduler.add(request)
        self._arrived.clear()
        if not self.scheduler.has_work:
            return
        self._plan = plan = self.scheduler.schedule(now_ns / NS)
        assert not plan.is_empty, "every request was found to fit before it was added"
        for request_id in plan.admitted:
            if self._records.scheduled_ns[int(request_id)] == NEVER:
                self._records.scheduled_ns[int(request_id)] = now_ns
        self.totals.num_preemptions += len(plan.preempted)
        context = max((seq.start + len(seq.token_ids) for seq in plan.decode), default=0)
        has_drafts = self._rate is not None and any(seq.num_drafts for seq in plan.decode)
        self._decode_ns = self._pricer.decode_ns(context, len(plan.decode), has_drafts) if context else 0
        self._charges = self._price_prompts(plan)
        self._start_ns, self._step_ns = now_ns, sum(each for _, each in self._charges) + self._decode_ns
        self._num_steps = 1 + self._count_repeats(plan, context)
        self._takes_arrivals = self._num_steps > 1 and self._runs is not None and self._runs.takes_arrivals
        self.end_ns = now_ns + self._num_steps * self._step_ns

    def apply(self) -> None:
        assert self._plan is not None
        plan, tokens, now = self._plan, self._tokens, self.end_ns / NS
        self.totals.count(self._num_steps, self._step_ns, len(plan.decode))
        decoding = [-1 - seq.token_ids[0] for seq in plan.decode]  # the last token encodes the index
        for index, prompt_ns in self._charges:
            self._records.prefill_shares[index] += prompt_ns * SHARES
        self._charge_decodes(decoding)
        self._note_decodes(decoding)
        further = {} if self._rate is None else {seq.request_id: self._accepted(seq) for seq in plan.decode}
        if self._runs is None:
            result = StepResult(plan.step_id, tokens, self._step_ns / NS, further=further)
            events = self.scheduler.apply(plan, result, now)
            if further:
                self._records.gaps[0] += sum(map(len, further.values()))
        else:
            events = self._runs.apply_run(plan, tokens, self._num_steps, now, self._step_ns / NS)
        prompts = {seq.request_id for seq in plan.prefill} if plan.prefill else ()
        if self.router is not None:
            for seq in plan.decode:
                self.router.generated(seq.request_id, self._num_steps + len(further.get(seq.request_id, ())))
        for event in events:
            if event.request_id in prompts:
                self._note_prompt(event)
            if event.finish_reason is not None:
                self._note_end(event)
        self._plan, self._takes_arrivals, self.end_ns = None, False, NEVER

    def stop(self, now_ns: int) -> None:
        """Fail: whole steps up to now are recorded, the rest of the planned ones is lost, and nothing follows."""
        if self._plan is not None:
            self._num_steps = (now_ns - self._start_ns) // self._step_ns
            if self._num_steps:
                self.end_ns = self._start_ns + self._num_steps * self._step_ns
                self.apply()
        self._plan, self._takes_arrivals, self.end_ns, self.is_stopped = None, False, NEVER, True

    def take_open(self, now_ns: int) -> list[int]:
        """Remove and return the open requests of a stopped engine. The records have where another one goes on."""
        assert self.is_stopped
        carried, moved = self._records.carried, self._records.moved
        begun = [(each, self.scheduler.abort(each, now_ns / NS)) for each in self.scheduler.open_ids if self.num_open]
        counts = {int(request_id): event.index for request_id, event in begun if event is not None}
        counts |= {index: carried[index].num_tokens if index in carried else 0 for index in self._arrived}
        for index, num_tokens in counts.items():
            before = carried.get(index, Carried(num_tokens, self._last_ns.get(index, NEVER), now_ns))
            carried[index] = before._replace(num_losses=before.num_losses + 1)
            moved.update(requests=1, tokens=num_tokens)
        self._arrived, self.num_open = [], 0
        return list(counts)

    def _accepted(self, seq: ScheduledSeq) -> tuple[SampledToken, ...]:
        """Return the tokens after the accepted drafts of a sequence, which are all alike."""
        assert self._rate is not None
        first, count = len(seq.history) - seq.num_prompt_tokens + 1, 0
        while count < seq.num_drafts and is_accepted(self._rate, seq.sampling.seed, first + count):
            count += 1
        return (self._tokens[seq.request_id],) * count

    def _note_decodes(self, decoding: list[int]) -> None:
        """Note all tokens of decoding requests; `_note_end` notes ends."""
        last_ns, gaps, end_ns = self._last_ns, self._records.gaps, self.end_ns
        first_end_ns = self._start_ns + self._step_ns
        for index in decoding:
            gaps[first_end_ns - last_ns[index]] += 1
            last_ns[index] = end_ns
        if self._num_steps > 1:
            gaps[self._step_ns] += (self._num_steps - 1) * len(decoding)

    def _note_prompt(self, event: TokenEvent) -> None:
        """Note the token behind a prompt: the first one, or one after a preemption."""
        index = -1 - self._tokens[event.request_id].token_id
        if event.index == 0:
            self._records.first_token_ns[index] = self.end_ns
            self._records.num_cached[index] = event.num_cached_tokens
        else:
            self._records.gaps[self.end_ns - self._last_ns[index]] += 1
        carried = self._records.carried.pop(index, None)
        if carried is not None and carried.num_losses and carried.num_tokens:
            self._records.pauses[self.end_ns - carried.last_ns] += 1
        self._last_ns[index] = self.end_ns
        if self.router is not None:
            self.router.generated(event.request_id)

    def _note_end(self, event: TokenEvent) -> None:
        self.num_open -= 1
        index = -1 - self._tokens.pop(event.request_id).token_id
        if self.hands_over and self.is_divided(index):
            self.handed.append(index)
            self._records.carried[index] = Carried(1, self.end_ns, self.end_ns)
        self._records.finish_ns[index], self._records.num_output[index] = self.end_ns, event.index + 1
        del self._last_ns[index]
        if self.router is not None:
            self.router.end(event.request_id)

    def _count_repeats(self, plan: StepPlan, context: int) -> int:
        """Return how many equally long steps like `plan` follow it if no request arrives."""
        count = 0 if self._runs is None or plan.received else self._runs.count_repeats(plan)
        return min(count, self._pricer.decode_bucket(context) - context) if count else 0

    def _price_prompts(self, plan: StepPlan) -> list[tuple[int, int]]:
        """Return requests and nanoseconds of the step's prompts, which run one by one, and of copies before them."""
        records, price = self._records, self._pricer.prefill_ns
        found = [(int(seq.request_id), price(seq.start, len(seq.token_ids))) for seq in plan.prefill]
        for request_id, *counts in plan.received:
            cost = self.copies.cost(*counts)
            copy_ns = round(cost.elapsed_s * NS)
            records.handed.update(requests=1, bytes=round(cost.link_bytes), ns=copy_ns)
            found.append((int(request_id), copy_ns))
        return found

    def _request(self, index: int) -> Request:
        """Return request `index`: its rest if it has a first token, its beginning if another engine is to go on."""
        request = request_of(self._workload, index, self._config.max_model_len, self.slo)
        carried = self._records.carried.get(index)
        if carried is not None and carried.num_tokens:
            self._last_ns[index] = carried.last_ns
            generated = (-1 - index,) * carried.num_tokens
            return replace(request, generated_token_ids=generated, is_handed_over=not carried.num_losses)
        is_first = self.hands_over and self.is_divided(index)
        return replace(request, sampling=SamplingParams(1)) if is_first else request

    def _charge_decodes(self, decoding: list[int]) -> None:
        if decoding:
            shares = self._records.decode_shares
            share = self._num_steps * (self._decode_ns * SHARES // len(decoding))
            for index in decoding:
                shares[index] += share


def request_of(workload: Workload, index: int, max_model_len: int, slo: Slo = NO_SLO) -> Request:
    """Return request `index`. Ids sort as indices, so ties are served in order of the workload."""
    num_input = int(workload.input_len[index])
    num_output = min(int(workload.output_len[index]), max_model_len - num_input)
    arrival_s = int(workload.arrival_ns[index]) / NS
    prompt, sampling = _prompt(workload, index, num_input), SamplingParams(num_output, seed=index)
    due_s, interval_s = (inf if limit is None else limit / 1e3 for limit in (slo.ttft_ms, slo.tpot_ms))
    return Request(
        f"{index:09d}", prompt, sampling, arrival_s, first_token_by=arrival_s + due_s, token_interval_s=interval_s
    )


def _prompt(workload: Workload, index: int, num_input: int) -> tuple[int, ...]:
    """Return token ids: each named block repeats its name; the rest repeats a negative number of the request."""
    prompt: list[int] = []
    for name in workload.prefixes[index] if workload.prefixes else ():
        prompt += [name] * workload.prefix_block
    del prompt[num_input:]
    prompt += [-1 - index] * (num_input - len(prompt))
    return tuple(prompt)
