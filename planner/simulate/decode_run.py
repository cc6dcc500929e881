"""A scheduler for virtual time, which applies a run of equal decode steps at once.

While all running sequences decode and no request comes, steps differ in nothing but their tokens, until the first
sequence reaches its length or blocks run out. A run changes the books as single steps would, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from ...server.kv_cache.manager import KVCacheManager
from ...server.kv_cache.state_slots import StateSlots
from ...server.scheduler.finish import LENGTH
from ...server.scheduler.scheduler import Scheduler
from ...server.scheduler.sequence import Sequence
from ...server.types import SampledToken, StepPlan, TokenEvent


class RunScheduler(Scheduler):
    """A scheduler that can count and apply runs. No step may be in flight when a run is planned."""

    @property
    def takes_arrivals(self) -> bool:
        """Whether the next `schedule` may admit a request that comes now, last in the order of service."""
        return len(self._running) < self._config.max_num_seqs and self._gate.heeds_arrivals(len(self._waiting))

    def count_repeats(self, plan: StepPlan) -> int:
        """Return how many plans like `plan`, which was scheduled and not applied, are sure to follow it.

        They follow while all running sequences decode, no request is added or aborted, and no token stops a sequence
        before its length does. A waiting sequence has no blocks meanwhile.
        """
        do_all_decode = 0 < len(plan.decode) == len(self._running)
        if not do_all_decode or plan.preempted or self._pending_events or self._waiting.takes_turns:
            return 0
        has_slot = len(self._running) < self._config.max_num_seqs
        stuck = self._waiting.first if self._waiting and has_slot else None
        count = _count_repeats(self._running, stuck, self._config.max_model_len, self._cache)
        if stuck is not None and not self._lets_prompts_in():
            count = int(min(count, self._gate.steps_left))
        return count

    def apply_run(
        self, plan: StepPlan, sampled: Mapping[str, SampledToken], num_steps: int, now: float, step_s: float
    ) -> list[TokenEvent]:
        """Apply `plan` and `num_steps` - 1 plans like it, at most `count_repeats(plan)`, of `step_s` seconds each.

        A sequence samples the same token in each step, and none is a stop token or an error. Returns the events of
        plan.prefill, and of the sequences of plan.decode that end with the last step.
        """
        self._applied_id += 1
        assert plan.step_id == self._step_id == self._applied_id, "no other step is in flight"
        self._size.record(plan, step_s, num_steps)
        events = self._apply(plan.prefill, sampled, now)
        seqs = [self._open[placed.request_id] for placed in plan.decode]
        _compute(seqs, sampled, num_steps, self._cache)
        self._gate.passed(False, True, num_steps - 1)
        ended = [seq for seq in seqs if len(seq.token_ids) >= min(seq.most_tokens, self._config.max_model_len)]
        for seq in seqs:
            self._cache.drop(seq.blocks, seq.num_computed_tokens)
            if seq in ended:
                self._close(seq)
        return events + [_last_event(seq, now) for seq in ended]


def _count_repeats(
    running: Iterable[Sequence], stuck: Sequence | None, max_model_len: int, cache: KVCacheManager
) -> int:
    """Return how many steps equal to the planned one follow it; `running` decode in it, their blocks allocated.

    `stuck` is the first sequence that waits for blocks, None when there is none.
    """
    seqs = list(running)
    limits: list[float] = [min(seq.most_tokens, max_model_len) - len(seq.token_ids) for seq in seqs]
    if stuck is not None and cache.config.enable_prefix_caching:
        limits += [_steps_to_full_block(seq, cache) for seq in seqs if _may_serve(seq, stuck)]
    limits += [_steps_to_drop(seq, group, cache) for seq in seqs for group in cache.windowed]
    if cache.states is not None:
        limits += [_steps_to_snapshot(seq, cache.states) for seq in seqs]
    return _count_allocatable(seqs, int(min(limits)) - 1, cache)


def _compute(seqs: list[Sequence], sampled: Mapping[str, SampledToken], num_steps: int, cache: KVCacheManager) -> None:
    """Let each of `seqs`, in order of service, compute `num_steps` tokens and sample its own of `sampled` each time.

    The next plan allocates the blocks of the token after the last, as between single steps; the caller drops the
    blocks that the last token leaves behind.
    """
    filling: dict[int, list[Sequence]] = {}  # by the step that fills a block
    size = cache.config.block_size
    for seq in seqs:
        for step in range(size - seq.num_computed_tokens % size, num_steps + 1, size):
            filling.setdefault(step, []).append(seq)
        seq.token_ids += [sampled[seq.request.request_id].token_id] * num_steps
        seq.num_computed_tokens += num_steps
        seq.num_scheduled_tokens = seq.num_computed_tokens
    for step in sorted(filling):
        later = num_steps - step
        for seq in filling[step]:
            cache.commit(seq.blocks, seq.token_ids, seq.num_computed_tokens - later)
        if later:
            for seq in filling[step]:
                is_allocated = cache.allocate(seq.blocks, seq.num_computed_tokens - later + 1)
                assert is_allocated, "more steps than are sure to follow"


def _last_event(seq: Sequence, now: float) -> TokenEvent:
    """Event of the last token of `seq`, which has reached its length."""
    request_id, index, num_cached = seq.request.request_id, seq.num_generated - 1, seq.num_cached_tokens
    return TokenEvent(request_id, seq.token_ids[-1], index, now, *LENGTH, num_cached)


def _steps_to_full_block(seq: Sequence, cache: KVCacheManager) -> int:
    """Decode steps until the computed tokens of `seq` fill its blocks, at least 1."""
    size = cache.config.block_size
    return size - seq.num_computed_tokens % size


def _steps_to_drop(seq: Sequence, group: int, cache: KVCacheManager) -> int:
    """Decode steps until `seq` gives back a block in `group`, which others may then get; at least 1."""
    end = (seq.blocks.num_dropped[group] + 1) * cache.config.block_size
    return cache.config.groups[group].end_of(end) - seq.num_computed_tokens


def _steps_to_snapshot(seq: Sequence, states: StateSlots) -> float:
    """Decode steps before the one whose state may become a snapshot, for which slots change; at least 1."""
    boundary = states.next_boundary(seq.num_computed_tokens, seq.num_prompt_tokens)
    return inf if boundary is None else max(1, boundary - 1 - seq.num_computed_tokens)


def _may_serve(seq: Sequence, stuck: Sequence) -> bool:
    """Return whether `stuck` may share the next block that `seq` fills, and so need one less."""
    known = seq.token_ids
    return (
        len(known) < len(stuck.token_ids)
        and (seq.request.cache_salt, seq.request.lora) == (stuck.request.cache_salt, stuck.request.lora)
        and stuck.token_ids[: len(known)] == known
    )


def _count_allocatable(seqs: list[Sequence], count: int, cache: KVCacheManager) -> int:
    """Return the most steps, up to `count`, whose blocks are free."""
    size, free = cache.config.block_size, cache.num_free_blocks // cache.num_groups  # each group needs as many

    def is_free(steps: int) -> bool:
        return sum(-(-(len(seq.token_ids) + steps) // size) - seq.blocks.num_blocks for seq in seqs) <= free

    if len(seqs) * (count // size + 1) <= free or is_free(count):
        return count
    low, high = 0, count  # low steps fit, high do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_free(middle) else (low, middle)
    return low
