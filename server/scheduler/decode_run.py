"""Equal decode steps in one go, for who drives a scheduler in virtual time: how many there are, and what they leave.

While all that run decode and nobody comes, steps differ in nothing but their tokens, until the first sequence is as
long as it may be, or blocks run out. Changes what single steps would change, in their order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from server.kv_cache.manager import KVCacheManager
from server.scheduler.sequence import Sequence


def count_repeats(
    running: Iterable[Sequence], stuck: Sequence | None, max_model_len: int, cache: KVCacheManager
) -> int:
    """How many steps equal to the one that was planned follow it: `running` decode in it, their blocks allocated.

    `stuck` is the first that waits for blocks, None where nobody does.
    """
    seqs = list(running)
    limits = [min(seq.num_tokens_left, max_model_len - len(seq.token_ids)) for seq in seqs]
    if stuck is not None and cache.config.enable_prefix_caching:
        limits += [_steps_to_full_block(seq, cache) for seq in seqs if _may_serve(seq, stuck)]
    return _count_allocatable(seqs, min(limits) - 1, cache)


def repeat(seqs: list[Sequence], token_ids: list[int], count: int, cache: KVCacheManager) -> None:
    """Let each of `seqs`, in order of service, compute `count` tokens more and sample its own of `token_ids`."""
    filling: dict[int, list[Sequence]] = defaultdict(list)  # by the step that fills a block
    for seq, token_id in zip(seqs, token_ids, strict=True):
        for step in range(_steps_to_full_block(seq, cache), count + 1, cache.config.block_size):
            filling[step].append(seq)
        seq.token_ids += [token_id] * count
        seq.num_computed_tokens += count
    for step in sorted(filling):
        for seq in filling[step]:
            cache.commit(seq.blocks, seq.token_ids, seq.num_computed_tokens - count + step)
        for seq in filling[step]:
            is_allocated = cache.allocate(seq.blocks, seq.num_computed_tokens - count + step + 1)
            assert is_allocated, "more steps than can be repeated"


def _steps_to_full_block(seq: Sequence, cache: KVCacheManager) -> int:
    """Decode steps until what `seq` has computed fills its blocks, at least 1."""
    size = cache.config.block_size
    return size - seq.num_computed_tokens % size


def _may_serve(seq: Sequence, stuck: Sequence) -> bool:
    """Whether the next block that `seq` fills may be one that `stuck` can share, which then needs one less."""
    known = seq.token_ids
    return (
        len(known) < len(stuck.token_ids)
        and seq.request.cache_salt == stuck.request.cache_salt
        and stuck.token_ids[: len(known)] == known
    )


def _count_allocatable(seqs: list[Sequence], count: int, cache: KVCacheManager) -> int:
    """The most steps, up to `count`, whose blocks are free."""
    size, free = cache.config.block_size, cache.num_free_blocks

    def is_free(steps: int) -> bool:
        return sum(-(-(len(seq.token_ids) + steps) // size) - len(seq.blocks.ids) for seq in seqs) <= free

    if len(seqs) * (count // size + 1) <= free or is_free(count):
        return count
    low, high = 0, count  # low steps fit, high do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_free(middle) else (low, middle)
    return low
