"""Choice of what the next step computes. Pure decisions over sequences and KV blocks: no clock, no randomness, no IO.

One order of service rules, that of the policy (service.py). Running sequences are placed in this order. Waiting ones
are admitted in it (groups take turns, fair_queue.py), none overtakes another, and the last running sequence gives up
its blocks first. A sequence is admitted only with blocks for all its known tokens, so half-prefilled prompts cannot
block each other and only decode can run out of blocks. Hence a preempted sequence was never placed in the same step.

Steps may be in flight: `schedule` may be called again before the plan before it is applied. A step in flight has
advanced `num_scheduled_tokens` of its sequences; `apply` advances `num_computed_tokens`. A sequence whose next token is
being sampled has nothing to compute, so it is left out until that step is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import chain

from ..config import SchedulerConfig
from ..kv_cache.manager import KVCacheManager
from ..kv_cache.sequence_blocks import NO_PREFIX
from ..types import (
    FinishReason,
    Request,
    SampledToken,
    ScheduledSeq,
    StepPlan,
    StepReport,
    StepResult,
    TokenEvent,
)
from .audit import audit
from .batching import POLICIES, PromptGate
from .fair_queue import FairQueue
from .finish import check_finish
from .places import Places
from .queue import OrderedQueue
from .sequence import Sequence, decoding, is_underway
from .service import SERVICE_POLICIES
from .step import StepDraft, report_of
from .step_size import StepSize


class Scheduler:
    """Fills steps under one token budget."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager) -> None:
        if not 1 <= config.max_num_seqs <= config.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({config.max_num_seqs}), which must be at least 1: each running sequence needs a token"
            )
        assert config.max_chunk <= cache.config.max_chunk or not cache.windowed, "tables are too narrow for a chunk"
        self._config = config
        self._policy = POLICIES[config.batching]
        self._gate = PromptGate(self._policy)
        self._cache = cache
        self._open: dict[str, Sequence] = {}
        self._running = OrderedQueue()
        self._service = SERVICE_POLICIES[config.policy]
        self._waiting = FairQueue(self._service)
        self._places = Places(self._running, self._waiting, config.max_num_seqs)
        self._size = StepSize(config.step_time_target_ms, by_objectives=self._service.by_deadline)
        self._step_id = self._applied_id = 0  # of the last plan, and of the last one that was applied
        self._pending_events: list[TokenEvent] = []  # ends that `schedule` decided, until `apply` returns them
        self._stuck: tuple[Sequence, int] | None = None  # the last refused admission; see _fits

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def running_ids(self) -> tuple[str, ...]:
        """Ids of the running requests in order of service."""
        return tuple(seq.request.request_id for seq in self._running)

    @property
    def open_ids(self) -> tuple[str, ...]:
        """Ids of all open requests, oldest `add` first."""
        return tuple(self._open)

    @property
    def tables(self) -> dict[str, list[int]]:
        """Blocks that each running request holds; the null block stands for those that it has given back."""
        return {seq.request.request_id: list(chain(*seq.blocks.tables)) for seq in self._running}

    def add(self, request: Request, encoded: tuple[int, ...] = ()) -> None:
        """Queue `request`, whose media are encoded in these blocks.

        Raises ValueError on an empty prompt or the id of an open request.
        """
        if not request.prompt_token_ids:
            raise ValueError(f"request {request.request_id} has an empty prompt")
        if request.request_id in self._open:
            raise ValueError(f"request {request.request_id} is open already")
        blocks = self._cache.open(request.cache_salt, request.lora, request.media, bool(request.generated_token_ids))
        order = self._service.order(request, self._size.rates.prompt_token_s)
        whole = request.media if self._config.has_whole_pictures else ()
        seq = self._open[request.request_id] = Sequence(request, blocks, order, encoded, whole)
        self._waiting.add(seq)

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        """End a request; return None when it is unknown or has ended. Steps in flight still compute its tokens."""
        seq = self._open.get(request_id)
        return None if seq is None else self._end(seq, now, "abort")

    def reset_prefix_cache(self) -> None:
        self._cache.reset_prefix_cache()

    def schedule(self, now: float) -> StepPlan:
        """Return the next step. An empty plan must be applied too: it may have ended requests."""
        config, most = self._config, self._policy.max_prompts
        step = StepDraft(config.max_num_batched_tokens, now, config.max_prompt_chunk, self._cache.states, most)
        self._waiting.at(now)
        mixes = self._gate.mixes_phases(self._is_catching_up)
        if (takes_prompts := mixes or self._lets_prompts_in()) and (giver := self._places.giver()) is not None:
            self._preempt(giver, step)
        if mixes:
            self._place_decodes(step)  # first, so that no prompt delays a token
            self._size.limit(step, self._running, self._waiting)
            self._place_prompts(step)
        else:
            if takes_prompts:
                self._place_prompts(step)
            if step.is_empty:
                self._place_decodes(step)
        self._gate.passed(bool(step.prefill), bool(step.decode))
        self._step_id += 1
        return step.plan(self._step_id)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Record what the oldest step in flight computed. Returns one event for each token and each end."""
        self._applied_id += 1
        assert plan.step_id == result.step_id == self._applied_id, "plans are applied one by one, in order"
        for request_id, logprobs in result.prompt_logprobs.items():
            if request_id in self._open:
                self._open[request_id].prompt_logprobs += logprobs
        self._size.record(plan, result.elapsed_s)
        return self._apply(plan.seqs, result.sampled, now)

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        """Report of the state after `apply`."""
        num_open = self.num_running, self.num_waiting
        return report_of(plan, result, now, self._cache, num_open, self._waiting.take_served())

    def audit(self) -> list[str]:
        """Return the faults of the books, one line each; O(blocks + open requests). For tests and debugging."""
        return audit(self._cache, self._open.values(), (*self._running, *self._waiting))

    def _apply(
        self, placed: Collection[ScheduledSeq], sampled: Mapping[str, SampledToken], now: float
    ) -> list[TokenEvent]:
        events, self._pending_events = self._pending_events, []
        size, has_drops = self._cache.config.block_size, self._cache.has_drops
        for each in placed:
            seq = self._open.get(each.request_id)
            if seq is None:  # it was aborted while the step was in flight
                continue
            seq.num_computed_tokens += len(each.token_ids)
            if seq.num_computed_tokens // size != seq.blocks.num_named:
                self._cache.commit(seq.blocks, seq.token_ids, seq.num_computed_tokens)
            if has_drops:
                self._cache.drop(seq.blocks, seq.num_computed_tokens)
            if each.needs_sample:
                events.append(self._accept(seq, sampled[each.request_id], now))
        return events

    def _place_decodes(self, step: StepDraft) -> None:
        size = self._cache.config.block_size
        for seq in decoding(self._running, self._config.num_batches):
            has_block = len(seq.token_ids) <= seq.blocks.num_blocks * size
            if step.budget and seq.is_running and (has_block or self._grow(seq, step)):
                step.place_decode(seq)

    def _place_prompts(self, step: StepDraft) -> None:
        """Place running prompts, then admit waiting ones. A step that ran out of blocks has none for an admission."""
        prompts = [seq for seq in self._running if seq.is_prefill] if len(step.decode) < len(self._running) else []
        for has_turn in self._places.turns(step):
            for seq in prompts:
                if step.takes_prompts and has_turn(seq):
                    step.place(seq)
            if not step.lacks_blocks:
                self._admit(step, has_turn)

    @property
    def _is_catching_up(self) -> bool:
        """True while sequences of an earlier engine are computed again."""
        waits = bool(self._waiting) and self._waiting.first.is_catching_up
        return waits or any(seq.num_resumed and seq.is_catching_up for seq in self._running)

    def _lets_prompts_in(self) -> bool:
        is_open = self._gate.is_open(len(self._running), len(self._waiting))
        return is_open or any(seq.is_prefill for seq in self._running)  # a prompt that was begun goes on

    def _grow(self, seq: Sequence, step: StepDraft) -> bool:
        """Allocate the block of a decoding sequence's next token, preempting from the tail for it.

        Returns False when the sequence was itself preempted, or when the tail's blocks are in use by a step in flight.
        """
        while not self._cache.allocate(seq.blocks, len(seq.token_ids)):
            victim = self._running.last
            if victim.is_in_flight:
                return False
            step.lacks_blocks = True
            self._preempt(victim, step)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence, step: StepDraft) -> None:
        """Move a sequence back to waiting and free its blocks. Its tokens stay; cached blocks save computing them."""
        self._running.remove(seq)
        self._cache.free(seq.blocks, seq.token_ids, seq.num_computed_tokens)
        seq.rewind()
        self._waiting.add(seq)
        step.preempted.append(seq.request.request_id)

    def _admit(self, step: StepDraft, has_turn: Callable[[Sequence], bool]) -> None:
        while self._waiting and len(self._running) < self._config.max_num_seqs and step.takes_prompts:
            if not has_turn(seq := self._waiting.first):
                return
            is_new = not seq.was_admitted
            if self._fits(seq):
                step.received += self._cache.take_received(seq.request.request_id)
                self._waiting.remove(seq)
                self._running.add(seq)
                seq.is_running = True
                if is_new and seq.is_decode:
                    step.admit(seq)
                # A preempted sequence whose tokens are all cached but one decodes: not in a step of prompts alone.
                if self._policy.mixes_phases or not seq.is_decode:
                    step.place(seq)
            elif self._running:
                return  # nobody overtakes; running sequences will free blocks
            else:  # alone in an empty cache and still too long: it has all the blocks that it can ever get
                self._pending_events.append(self._end(seq, step.time, "length"))

    def _fits(self, seq: Sequence) -> bool:
        """Allocate for all known tokens of `seq`, cached prefix included, leaving a block for each running sequence.

        The spare blocks keep admission and preemption from undoing each other's work. A refusal is remembered until
        a block is released (so also when fewer sequences run) or named, so that a queue costs a decode step nothing.
        """
        cache, attempt = self._cache, (seq, self._cache.num_gains)
        if attempt == self._stuck:
            return False
        while True:
            prefix = NO_PREFIX if seq.needs_prompt_logits else cache.lookup(seq.blocks, seq.token_ids)
            next_shared = cache.next_shared(prefix, seq.num_prompt_tokens)
            waits = is_underway(seq, next_shared, self._running, cache.config.block_size)
            if waits or not cache.allocate(seq.blocks, len(seq.token_ids), prefix, len(self._running)):
                self._stuck = seq, cache.num_gains
                return False
            if cache.load(seq.blocks, seq.token_ids, prefix):
                break
            cache.free(seq.blocks)  # a damaged copy, which is dropped by now
        seq.num_scheduled_tokens = seq.num_computed_tokens = cache.num_tokens(prefix)
        if not seq.was_admitted:
            seq.was_admitted = True
            seq.num_cached_tokens = seq.num_computed_tokens
            cache.count_lookup(seq.num_prompt_tokens, prefix)
            self._waiting.serve(seq, seq.num_pending)
        return True

    def _accept(self, seq: Sequence, sampled: SampledToken, now: float) -> TokenEvent:
        """Append a sampled token, and end the sequence if that was its last."""
        if sampled.error is not None:
            self._cache.discard(seq.blocks)
            return self._end(seq, now, "error", sampled.error)
        self._waiting.serve(seq, 1)
        token_ids, request, token_id = seq.token_ids, seq.request, sampled.token_id
        token_ids.append(token_id)
        num_generated = len(token_ids) - seq.num_prompt_tokens
        if seq.first_token_time is None:
            seq.first_token_time = now
        is_context_full = len(token_ids) >= self._config.max_model_len
        finish = check_finish(request.sampling, token_id, num_generated, is_context_full=is_context_full)
        if finish is not None:
            self._close(seq)
        reason, stop_reason = finish or (None, None)
        index, tail = num_generated - 1, (seq.num_cached_tokens, sampled.logprobs, None, seq.take_prompt_logprobs())
        return TokenEvent(request.request_id, token_id, index, now, reason, stop_reason, *tail, sampled.row, seq.drafts)

    def _end(self, seq: Sequence, now: float, reason: FinishReason, error: str | None = None) -> TokenEvent:
        """End a sequence without a token."""
        self._close(seq)
        request_id, num_cached = seq.request.request_id, seq.num_cached_tokens
        return TokenEvent(request_id, None, seq.num_generated, now, reason, num_cached_tokens=num_cached, error=error)

    def _close(self, seq: Sequence) -> None:
        del self._open[seq.request.request_id]
        (self._running if seq.is_running else self._waiting).remove(seq)
        self._cache.free(seq.blocks, seq.token_ids, seq.num_computed_tokens)
