"""A scheduler with its fake runner, driven step by step, every law checked after each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from neuronserve.server.config import AttentionSpan, CacheConfig, SchedulerConfig
from neuronserve.server.config.formats import Batching, SchedulingPolicy
from neuronserve.server.config.speculation import DraftMethod, SpeculationConfig
from neuronserve.server.engine.fake_runner import FakeRunner, expected_prompt_logprobs, expected_tokens
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.batching import POLICIES
from neuronserve.server.scheduler.drafts.model_speculator import PLACE
from neuronserve.server.scheduler.drafts.text_index import TextIndex
from neuronserve.server.scheduler.places import MOST_IN_A_ROW
from neuronserve.server.scheduler.sequence import Sequence as OpenSequence
from neuronserve.server.scheduler.speculative import scheduler_of
from neuronserve.server.types import Request, SampledToken, SamplingParams, StepPlan, StepReport, StepResult, TokenEvent
from tests.tier_stores import TestedTiers

VOCAB = 11
FULL = (AttentionSpan(),)

# Groups of layers that look back differently far: one, or several, of which one at least sees the token before its own.
GROUPS = (
    FULL,
    *((AttentionSpan(window),) for window in (2, 3, 5, 9)),
    (*FULL, AttentionSpan(3)),
    (*FULL, AttentionSpan(4), AttentionSpan(4)),
    (*FULL, AttentionSpan(5, is_chunked=True)),
    (AttentionSpan(7), AttentionSpan(1)),
)


# Fields of Request.
OWN = (
    *("arrival_time", "priority", "cache_salt", "tenant", "generated_token_ids", "media"),
    *("weight", "first_token_by", "token_interval_s", "due_time"),
)


def request(request_id: str, prompt: list[int], max_tokens: int = 4, **fields: Any) -> Request:
    """A request; keyword arguments go to `Request` where it has such a field, to `SamplingParams` otherwise."""
    own = {k: fields.pop(k) for k in OWN if k in fields}
    own.setdefault("arrival_time", 0.0)
    return Request(request_id, tuple(prompt), SamplingParams(max_tokens, **fields), **own)


def expected_output(request: Request, max_model_len: int, groups: Sequence[AttentionSpan] = FULL) -> list[int]:
    """Return the tokens of an uninterrupted request, by the definition of each way to finish."""
    params = request.sampling
    most = min(params.max_tokens, max_model_len - len(request.prompt_token_ids))
    tokens = expected_tokens(request.prompt_token_ids, most, VOCAB, groups)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(params.eos_token_ids))
    for count, token in enumerate(tokens, 1):
        if token in ends and count >= params.min_tokens:
            return tokens[:count]
    return tokens


class FakeStates:
    """States of the fake model. Implements neuronserve.server.engine.blob_file.BlobBytes."""

    num_bytes = 8

    def __init__(self, runner: FakeRunner) -> None:
        self._states = runner._states

    def read(self, place: int) -> npt.NDArray[np.uint8]:
        return np.array([self._states[place]], np.uint64).view(np.uint8)

    def write(self, place: int, content: npt.NDArray[np.uint8]) -> None:
        self._states[place] = int(content.view(np.uint64)[0])


class GuessingDrafter:
    """Drafts the right tokens, but for one in five."""

    width = 1

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def propose(self, seq: OpenSequence, index: TextIndex, most: int) -> list[int]:
        known, groups = seq.token_ids, self._bench.cache.config.groups
        right = expected_tokens(known, most, VOCAB, groups)
        return [token if (len(known) + i) % 5 else (token + 1) % VOCAB for i, token in enumerate(right)]

    def close(self, seq: OpenSequence) -> None:
        assert seq.request.request_id not in self._bench.scheduler.open_ids


class Bench:
    """Runs steps, gathers events by request, and holds the laws that bind every step."""

    def __init__(
        self, cache: CacheConfig, config: SchedulerConfig, tiers: Sequence[int] = (), mirrors: int = 0
    ) -> None:
        """`tiers` are the slots of each tier, `mirrors` those of the first one for copies of what is on the device."""
        self.config = config
        self.runner = FakeRunner(cache, VOCAB)
        kinds = [self.runner, FakeStates(self.runner)][: 1 + bool(cache.num_states)] if tiers else []
        self.tiers = [TestedTiers(each, cache.block_size, tiers, mirrors) for each in kinds]
        self.cache = KVCacheManager(cache, *[*(each.tiers for each in self.tiers), None, None][:2], self.runner.copy)
        self.scheduler = scheduler_of(config, self.cache)
        self.guesses = GuessingDrafter(self)
        self.makes_drafts = config.speculation is not None and config.speculation.method == "draft_model"
        if config.speculation is not None:  # a draft model's are made here, in the places of the plan
            self.scheduler._speculator._drafter = self.guesses  # type: ignore[attr-defined]
        self.requests: dict[str, Request] = {}
        self.events: dict[str, list[TokenEvent]] = defaultdict(list)
        self.plans: list[StepPlan] = []
        self.reports: list[StepReport] = []
        self.num_passed = 0  # steps in a row in which the first in order did not advance
        self.placed: set[str] = set()  # ids that were in a plan
        self.broken: set[str] = set()  # ids whose logits are not finite
        self.now = 0.0

    def add(self, *requests: Request) -> None:
        for one in requests:
            self.requests[one.request_id] = one
            self.scheduler.add(one)
        self.check_books()

    def abort(self, request_id: str) -> TokenEvent | None:
        event = self.scheduler.abort(request_id, self.now)
        if event is not None:
            self.record([event])
        self.check_books()
        return event

    def step(self) -> StepPlan:
        self.now += 1.0
        plan = self.scheduler.schedule(self.now)
        self.check_plan(plan)
        self.check_books()
        result = self.runner.execute(self.drafted(plan) if self.makes_drafts else plan)
        for request_id in self.broken & result.sampled.keys():
            result.sampled[request_id] = SampledToken(0, error="not finite")
        events = self.scheduler.apply(plan, result, self.now)
        self.record(events)
        self.check_books()
        assert events or not plan.is_empty or plan.preempted, "a step did nothing"
        self.check_report(plan, result)
        self.plans.append(plan)
        return plan

    def drafted(self, plan: StepPlan) -> StepPlan:
        """Return the plan with drafts in place of its last tokens."""
        open_seqs = self.scheduler._open
        decode = []
        for seq in plan.decode:
            assert seq.token_ids[1:] == (PLACE,) * seq.num_drafts
            drafts = self.guesses.propose(open_seqs[seq.request_id], TextIndex(1), seq.num_drafts)
            decode.append(seq._replace(token_ids=(seq.token_ids[0], *drafts)))
        return plan._replace(decode=tuple(decode))

    def finish(self, max_steps: int = 1000) -> None:
        for _ in range(max_steps):
            if self.scheduler.has_work:
                self.step()
        if self.scheduler.has_work:
            raise AssertionError(f"still open after {max_steps} steps: {self.scheduler.open_ids}")

    def check_plan(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert self.scheduler.num_running <= self.config.max_num_seqs
        ids = [seq.request_id for seq in plan.seqs]
        assert len(ids) == len(set(ids))
        assert not set(ids) & {*plan.preempted}
        running = self.scheduler.running_ids
        assert set(ids) <= set(running)
        policy = POLICIES[self.config.batching]
        if not policy.mixes_phases:
            assert not (plan.prefill and plan.decode), "prompts and decodes are different graphs"
        if policy.max_prompts is not None:
            assert len(plan.prefill) <= policy.max_prompts
        resumed = {each for each in self.scheduler.open_ids if self.requests[each].generated_token_ids}
        if (self.config.batching == "continuous" and not resumed) or plan.decode:
            is_passed = bool(running) and running[0] not in ids
            self.num_passed = self.num_passed + 1 if is_passed else 0
            assert self.num_passed <= MOST_IN_A_ROW, "the first in order did not advance"
            prompts = {self.requests[seq.request_id].tenant for seq in plan.prefill}
            assert not is_passed or self.requests[running[0]].tenant not in prompts, "it gave way to its own tenant"
        first = {self.requests[each].tenant for each in plan.admitted}  # who may have got the place of another tenant's
        lost, kept = (
            [self.scheduler._open[each].order for each in ids if self.requests[each].tenant not in first]
            for ids in (plan.preempted, running)
        )
        assert not (lost and kept) or max(kept) < min(lost), "a victim was not the last in order"
        chunk = self.config.max_prompt_chunk or self.config.max_num_batched_tokens
        assert all(len(seq.token_ids) <= chunk for seq in plan.prefill)
        first_placed = {seq.request_id for seq in plan.prefill} - self.placed
        is_first = first_placed <= {*plan.admitted} <= first_placed | (resumed - self.placed)  # these may only decode
        assert is_first, "admitted is not who was placed for the first time"
        self.placed |= {*plan.admitted}
        for seq in plan.decode:
            assert len(seq.token_ids) == 1 + seq.num_drafts
            assert seq.start >= seq.num_prompt_tokens
            known = len(seq.history) - seq.num_prompt_tokens
            assert known + 1 + seq.num_drafts <= seq.sampling.max_tokens, "a draft of a token that cannot come"
            assert seq.needs_sample
        for seq in plan.seqs:
            end = seq.start + len(seq.token_ids) - seq.num_drafts
            assert list(seq.history[seq.start : end]) == list(seq.token_ids[: end - seq.start]) != []
            assert seq.start + len(seq.token_ids) <= self.config.max_model_len
            assert seq.needs_sample == (end == len(seq.history))

    def check_books(self) -> None:
        assert self.scheduler.audit() == []

    def check_report(self, plan: StepPlan, result: StepResult) -> None:
        report = self.scheduler.report(plan, result, self.now)
        self.reports.append(report)
        assert report.num_prefill_tokens + report.num_decode_tokens == plan.num_tokens
        assert report.num_running + report.num_waiting == len(self.scheduler.open_ids)
        assert (report.preempted, report.step_id) == (plan.preempted, plan.step_id)
        assert report.drafts == tuple(
            (seq.num_drafts, len(result.further.get(seq.request_id, ()))) for seq in plan.decode if seq.num_drafts
        )
        assert (report.admitted, report.start_time) == (plan.admitted, self.now)
        assert report.num_free_blocks == self.cache.num_free_blocks < report.num_blocks

    def record(self, events: list[TokenEvent]) -> None:
        last = {event.request_id: event for event in events}
        for event in events:
            before = self.events[event.request_id]
            assert not before or before[-1].finish_reason is None, "an ended request spoke again"
            assert event.index == len(before) + len(self.requests[event.request_id].generated_token_ids)
            assert event.token_id is not None or event.finish_reason is not None
            if event is last[event.request_id]:
                assert (event.finish_reason is None) == (event.request_id in self.scheduler.open_ids)
            self.check_prompt_logprobs(event)
            before.append(event)
            assert 0 <= event.drafts[1] <= event.drafts[0]

    def check_prompt_logprobs(self, event: TokenEvent) -> None:
        request = self.requests[event.request_id]
        is_due = request.sampling.prompt_logprobs is not None and event.index == 0 and event.token_id is not None
        expected = expected_prompt_logprobs(request.prompt_token_ids) if is_due else ()
        assert event.prompt_logprobs == expected, "not once, with the first token"

    def tokens(self, request_id: str) -> list[int]:
        """Return the generated tokens, those of an earlier engine included."""
        own = [event.token_id for event in self.events[request_id] if event.token_id is not None]
        return [*self.requests[request_id].generated_token_ids, *own]

    def reason(self, request_id: str) -> str | None:
        return self.events[request_id][-1].finish_reason if self.events[request_id] else None

    def expected(self, request_id: str) -> list[int]:
        return expected_output(self.requests[request_id], self.config.max_model_len, self.cache.config.groups)


def bench(
    num_blocks: int = 40,
    block_size: int = 4,
    *,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    max_model_len: int = 64,
    enable_prefix_caching: bool = True,
    batching: Batching = "continuous",
    max_prompt_chunk: int | None = None,
    groups: tuple[AttentionSpan, ...] = FULL,
    num_states: int = 0,
    snapshot_blocks: int = 32,
    tiers: Sequence[int] = (),
    mirrors: int = 0,
    num_drafts: int = 0,
    drafts_by: DraftMethod = "ngram",
    policy: SchedulingPolicy = "fair",
    step_time_target_ms: float | Literal["auto"] | None = None,
) -> Bench:
    config = SchedulerConfig(
        max_model_len,
        max_num_seqs,
        max_num_batched_tokens,
        batching=batching,
        max_prompt_chunk=max_prompt_chunk,
        speculation=SpeculationConfig(drafts_by, num_drafts) if num_drafts else None,
        policy=policy,
        step_time_target_ms=step_time_target_ms,
    )
    states = num_states, snapshot_blocks
    cache = CacheConfig(num_blocks, block_size, enable_prefix_caching, groups, config.max_chunk, *states)
    return Bench(cache, config, tiers, mirrors)
