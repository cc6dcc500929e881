"""Equal decode steps in one go, for who drives a scheduler in virtual time: how many there are, and what they leave.

While all that run decode and nobody comes, steps differ in nothing but their tokens, until the first sequence is as
long as it may be, or blocks run out. Changes what single steps would change, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.finish import LENGTH
from neuronserve.server.scheduler.sequence import Sequence
from neuronserve.server.types import SampledToken, TokenEvent


def count_repeats(
    running: Iterable[Sequence], stuck: Sequence | None, max_model_len: int, cache: KVCacheManager
) -> int:
    """How many steps equal to the one that was planned follow it: `running` decode in it, their blocks allocated.

    `stuck` is the first that waits for blocks, None where nobody does.
    """
    seqs = list(running)
    limits = [min(seq.most_tokens, max_model_len) - len(seq.token_ids) for seq in seqs]
    if stuck is not None and cache.config.enable_prefix_caching:
        limits += [_steps_to_full_block(seq, cache) for seq in seqs if _may_serve(seq, stuck)]
    limits += [_steps_to_drop(seq, group, cache) for seq in seqs for group in cache.windowed]
    return _count_allocatable(seqs, min(limits) - 1, cache)


def compute(seqs: list[Sequence], sampled: Mapping[str, SampledToken], num_steps: int, cache: KVCacheManager) -> None:
    """Let each of `seqs`, in order of service, compute `num_steps` tokens and sample its own of `sampled` each time.

    As between single steps, the blocks of the token after the last are the next plan's business; what the last token
    leaves behind is the caller's.
    """
    filling: dict[int, list[Sequence]] = {}  # by the step that fills a block
    size = cache.config.block_size
    for seq in seqs:
        for step in range(size - seq.num_computed_tokens % size, num_steps + 1, size):
            filling.setdefault(step, []).append(seq)
        seq.token_ids += [sampled[seq.request.request_id].token_id] * num_steps
        seq.num_computed_tokens += num_steps
    for step in sorted(filling):
        later = num_steps - step
        for seq in filling[step]:
            cache.commit(seq.blocks, seq.token_ids, seq.num_computed_tokens - later)
        if later:
            for seq in filling[step]:
                is_allocated = cache.allocate(seq.blocks, seq.num_computed_tokens - later + 1)
                assert is_allocated, "more steps than are sure to follow"


def last_event(seq: Sequence, now: float) -> TokenEvent:
    """Of the last token of `seq`, which is as long as it may be."""
    request_id, index, num_cached = seq.request.request_id, seq.num_generated - 1, seq.num_cached_tokens
    return TokenEvent(request_id, seq.token_ids[-1], index, now, *LENGTH, num_cached)


def _steps_to_full_block(seq: Sequence, cache: KVCacheManager) -> int:
    """Decode steps until what `seq` has computed fills its blocks, at least 1."""
    size = cache.config.block_size
    return size - seq.num_computed_tokens % size


def _steps_to_drop(seq: Sequence, group: int, cache: KVCacheManager) -> int:
    """Decode steps until a block of `seq` in `group` is given back, which changes what others get, at least 1."""
    end = (seq.blocks.num_dropped[group] + 1) * cache.config.block_size
    return cache.config.groups[group].end_of(end) - seq.num_computed_tokens


def _may_serve(seq: Sequence, stuck: Sequence) -> bool:
    """Whether the next block that `seq` fills may be one that `stuck` can share, which then needs one less."""
    known = seq.token_ids
    return (
        len(known) < len(stuck.token_ids)
        and (seq.request.cache_salt, seq.request.lora) == (stuck.request.cache_salt, stuck.request.lora)
        and stuck.token_ids[: len(known)] == known
    )


def _count_allocatable(seqs: list[Sequence], count: int, cache: KVCacheManager) -> int:
    """The most steps, up to `count`, whose blocks are free."""
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
