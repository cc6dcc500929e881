"""Who computes what in the next step. Pure decisions over sequences and the KV books: no clock, no chance, no IO.

One order of service rules: priority, then arrival, then id. Running sequences are placed in it, waiting ones admitted
in it (fair_queue.py: tenants in turns) with no overtaking, and whoever must give up blocks is its last. A sequence is
admitted only with blocks for all its known tokens, so half-prefilled prompts cannot block each other, and only decode
can run out of blocks. Hence a victim is never placed yet. What a step may hold together is the batching policy's: under
"continuous" the first that runs advances in every step, under the others in every one without a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from neuronserve.server.config import SchedulerConfig
from neuronserve.server.kv_cache.manager import NO_PREFIX, KVCacheManager
from neuronserve.server.scheduler import decode_run
from neuronserve.server.scheduler.audit import audit
from neuronserve.server.scheduler.batching import POLICIES, PromptGate
from neuronserve.server.scheduler.fair_queue import FairQueue
from neuronserve.server.scheduler.finish import check_finish
from neuronserve.server.scheduler.queue import OrderedQueue
from neuronserve.server.scheduler.sequence import Sequence, is_underway
from neuronserve.server.scheduler.step import StepDraft, report_of
from neuronserve.server.types import (
    FinishReason,
    Request,
    SampledToken,
    ScheduledSeq,
    StepPlan,
    StepReport,
    StepResult,
    TokenEvent,
)


class Scheduler:
    """Fills steps under one token budget. `add` and `abort` belong between `apply` and `schedule`."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager) -> None:
        if not 1 <= config.max_num_seqs <= config.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({config.max_num_seqs}), and that at least 1: each running sequence needs its token"
            )
        assert config.max_chunk <= cache.config.max_chunk or not cache.windowed, "tables are too narrow for a chunk"
        self._config = config
        self._policy = POLICIES[config.batching]
        self._gate = PromptGate(self._policy)
        self._cache = cache
        self._open: dict[str, Sequence] = {}
        self._running = OrderedQueue()
        self._waiting = FairQueue()
        self._step_id = 0
        self._pending_events: list[TokenEvent] = []  # of ends that schedule decided, until apply returns them
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
        """The blocks that each running request holds; the null block stands for those that it has given back."""
        return {seq.request.request_id: list(chain(*seq.blocks.tables)) for seq in self._running}

    def add(self, request: Request) -> None:
        """Let `request` wait for its turn. Raises ValueError on an empty prompt or the id of an open request."""
        if not request.prompt_token_ids:
            raise ValueError(f"request {request.request_id} has an empty prompt")
        if request.request_id in self._open:
            raise ValueError(f"request {request.request_id} is open already")
        seq = self._open[request.request_id] = Sequence(request, self._cache.open(request.cache_salt, request.lora))
        self._waiting.add(seq)

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        """End a request wherever it is; None when it is unknown or has ended."""
        seq = self._open.get(request_id)
        return None if seq is None else self._end(seq, now, "abort")

    def reset_prefix_cache(self) -> None:
        self._cache.reset_prefix_cache()

    def schedule(self, now: float) -> StepPlan:
        """The next step. An empty plan must be applied too: it may have ended requests."""
        step = StepDraft(self._config.max_num_batched_tokens, now, self._config.max_prompt_chunk)
        self._waiting.at(now)
        if self._gate.mixes_phases(self._is_catching_up):
            self._place_decodes(step)  # first, so that no prompt delays a token
            self._place_prompts(step, now)
        else:
            if self._lets_prompts_in():
                self._place_prompts(step, now)
            if step.is_empty:
                self._place_decodes(step)
        self._gate.passed(bool(step.prefill), bool(step.decode))
        self._step_id += 1
        return step.plan(self._step_id)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Record what the step computed. Returns one event for each token, and each end, of this step."""
        assert plan.step_id == result.step_id == self._step_id, "plans are applied one by one, in order"
        for request_id, logprobs in result.prompt_logprobs.items():
            self._open[request_id].prompt_logprobs += logprobs
        return self._apply(plan.seqs, result.sampled, now)

    @property
    def takes_arrivals(self) -> bool:
        """Whether a request that comes now, last in the order of service, may be admitted by the next `schedule`."""
        return len(self._running) < self._config.max_num_seqs and self._gate.heeds_arrivals(len(self._waiting))

    def count_repeats(self, plan: StepPlan) -> int:
        """How many plans like `plan`, which was scheduled and not applied, are sure to follow it.

        They are while all that run decode, nobody is added or aborted, and no token stops a sequence before its
        length does. What waits is stuck meanwhile.
        """
        do_all_decode = 0 < len(plan.decode) == len(self._running)
        if not do_all_decode or plan.preempted or self._pending_events or self._waiting.takes_turns:
            return 0
        has_slot = len(self._running) < self._config.max_num_seqs
        stuck = self._waiting.first if self._waiting and has_slot else None
        count = decode_run.count_repeats(self._running, stuck, self._config.max_model_len, self._cache)
        if stuck is not None and not self._lets_prompts_in():
            count = int(min(count, self._gate.steps_left))
        return count

    def apply_run(
        self, plan: StepPlan, sampled: Mapping[str, SampledToken], num_steps: int, now: float
    ) -> list[TokenEvent]:
        """As `apply` of `plan` and of `num_steps` - 1, at most `count_repeats(plan)`, plans like it that follow.

        A sequence samples the same token in each step, and none is a stop token or an error. Returns the events of
        plan.prefill, and of the sequences of plan.decode that end with the last step.
        """
        assert plan.step_id == self._step_id, "plans are applied one by one, in order"
        events = self._apply(plan.prefill, sampled, now)
        seqs = [self._open[placed.request_id] for placed in plan.decode]
        decode_run.compute(seqs, sampled, num_steps, self._cache)
        self._gate.passed(False, True, num_steps - 1)
        ended = [seq for seq in seqs if len(seq.token_ids) >= min(seq.most_tokens, self._config.max_model_len)]
        for seq in seqs:
            self._cache.drop(seq.blocks, seq.num_computed_tokens)
            if seq in ended:
                self._close(seq)
        return events + [decode_run.last_event(seq, now) for seq in ended]

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        """The state after `apply`."""
        num_open = self.num_running, self.num_waiting
        return report_of(plan, result, now, self._cache, num_open, self._waiting.take_served())

    def audit(self) -> list[str]:
        """What is wrong with the books, one line each; O(blocks + open requests). For tests and debugging."""
        return audit(self._cache, self._open.values(), (*self._running, *self._waiting))

    def _apply(
        self, placed: Iterable[ScheduledSeq], sampled: Mapping[str, SampledToken], now: float
    ) -> list[TokenEvent]:
        events, self._pending_events = self._pending_events, []
        size = self._cache.config.block_size
        for each in placed:
            seq = self._open[each.request_id]
            seq.num_computed_tokens += len(each.token_ids)
            if seq.num_computed_tokens // size != seq.blocks.num_named:
                self._cache.commit(seq.blocks, seq.token_ids, seq.num_computed_tokens)
            self._cache.drop(seq.blocks, seq.num_computed_tokens)
            if each.needs_sample:
                events.append(self._accept(seq, sampled[each.request_id], now))
        return events

    def _place_decodes(self, step: StepDraft) -> None:
        size = self._cache.config.block_size
        for seq in [seq for seq in self._running if seq.is_decode]:
            has_block = len(seq.token_ids) <= seq.blocks.num_blocks * size  # while it runs
            if step.budget and seq.is_running and (has_block or self._grow(seq, step)):
                step.place_decode(seq)

    def _place_prompts(self, step: StepDraft, now: float) -> None:
        """Those under way, then those that wait; but a step that took blocks away has none to give."""
        if len(step.decode) < len(self._running):
            for seq in self._running:
                if not seq.is_decode and self._takes_prompts(step):
                    step.place(seq)
        if not step.preempted:
            self._admit(step, now)

    @property
    def _is_catching_up(self) -> bool:
        """Whether what an engine before this one had computed still has to be computed again."""
        waits = bool(self._waiting) and self._waiting.first.is_catching_up
        return waits or any(seq.num_resumed and seq.is_catching_up for seq in self._running)

    def _lets_prompts_in(self) -> bool:
        is_open = self._gate.is_open(len(self._running), len(self._waiting))
        return is_open or any(not seq.is_decode for seq in self._running)  # one that was begun goes on

    def _takes_prompts(self, step: StepDraft) -> bool:
        most = self._policy.max_prompts
        return step.budget > 0 and (most is None or len(step.prefill) < most)

    def _grow(self, seq: Sequence, step: StepDraft) -> bool:
        """Give a decoding sequence the blocks of its next token, the tail's if need be; False when it is the tail."""
        while not self._cache.allocate(seq.blocks, len(seq.token_ids)):
            victim = self._running.last
            self._preempt(victim, step)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence, step: StepDraft) -> None:
        """Back to waiting, its tokens kept, its blocks freed: what the prefix cache keeps need not be recomputed."""
        self._running.remove(seq)
        self._cache.free(seq.blocks)
        seq.rewind()
        self._waiting.add(seq)
        step.preempted.append(seq.request.request_id)

    def _admit(self, step: StepDraft, now: float) -> None:
        while self._waiting and self._takes_prompts(step) and len(self._running) < self._config.max_num_seqs:
            seq = self._waiting.first
            is_new = not seq.was_admitted
            if self._fits(seq):
                self._waiting.remove(seq)
                self._running.add(seq)
                seq.is_running = True
                if is_new:
                    step.admit(seq.request)
                # Back from a preemption with all but a token cached, it decodes: with the others, where those go apart.
                if self._policy.mixes_phases or not seq.is_decode:
                    step.place(seq)
            elif self._running:
                return  # nobody overtakes; those who run will free blocks
            else:  # alone in an empty cache and still too long: it has all it can ever get
                self._pending_events.append(self._end(seq, now, "length"))

    def _fits(self, seq: Sequence) -> bool:
        """Allocate for all known tokens of `seq`, cached prefix included, leaving blocks for each that runs to grow.

        The spare blocks keep admission and preemption from undoing each other's work. A refusal is remembered until
        a block is let go of (so also when fewer run) or named, so that a queue costs a decode step nothing.
        """
        cache = self._cache
        attempt = (seq, cache.pool.num_gains)
        if attempt == self._stuck:
            return False
        prefix = NO_PREFIX if seq.needs_prompt_logits else cache.lookup(seq.blocks, seq.token_ids)
        waits = is_underway(seq, prefix.num_blocks, self._running, cache.config.block_size)
        if waits or not cache.allocate(seq.blocks, len(seq.token_ids), prefix, len(self._running)):
            self._stuck = attempt
            return False
        seq.num_computed_tokens = prefix.num_blocks * cache.config.block_size
        if not seq.was_admitted:
            seq.was_admitted = True
            seq.num_cached_tokens = seq.num_computed_tokens
            cache.count_lookup(seq.num_prompt_tokens, min(seq.num_cached_tokens, seq.num_prompt_tokens))
            self._waiting.serve(seq, seq.num_pending)
        return True

    def _accept(self, seq: Sequence, sampled: SampledToken, now: float) -> TokenEvent:
        """Append a sampled token, and end the sequence where that was its last."""
        if sampled.error is not None:
            self._cache.discard(seq.blocks)
            return self._end(seq, now, "error", sampled.error)
        self._waiting.serve(seq, 1)
        token_ids, request, token_id = seq.token_ids, seq.request, sampled.token_id
        token_ids.append(token_id)
        num_generated = len(token_ids) - seq.num_prompt_tokens
        is_context_full = len(token_ids) >= self._config.max_model_len
        finish = check_finish(request.sampling, token_id, num_generated, is_context_full=is_context_full)
        if finish is not None:
            self._close(seq)
        reason, stop_reason = finish or (None, None)
        index, tail = num_generated - 1, (seq.num_cached_tokens, sampled.logprobs, None, seq.take_prompt_logprobs())
        return TokenEvent(request.request_id, token_id, index, now, reason, stop_reason, *tail)

    def _end(self, seq: Sequence, now: float, reason: FinishReason, error: str | None = None) -> TokenEvent:
        """End with no token."""
        self._close(seq)
        request_id, num_cached = seq.request.request_id, seq.num_cached_tokens
        return TokenEvent(request_id, None, seq.num_generated, now, reason, num_cached_tokens=num_cached, error=error)

    def _close(self, seq: Sequence) -> None:
        del self._open[seq.request.request_id]
        (self._running if seq.is_running else self._waiting).remove(seq)
        self._cache.free(seq.blocks)
