"""Long contexts without their prefill: a run begins with a context whose keys and values are in the KV cache already.

The scheduler finds it as it finds any cached prefix, and kernels read it through the same block tables. One prompt is
computed; copies of its blocks fill the rest of the contexts, so keys and values are real but at wrong positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ..engine.load.loading import LoadedEngine
from ..errors import SettingsError
from ..kv_cache.blocks import NULL_BLOCK
from ..kv_cache.manager import KVCacheManager
from ..kv_cache.sequence_blocks import SequenceBlocks
from ..types import Request


def require_whole_blocks(context_len: int, block_size: int) -> None:
    """Raise SettingsError for a context that ends within a block, where a prefix cache finds nothing."""
    if context_len % block_size:
        raise SettingsError(f"context_len is {context_len}: it must be whole blocks of {block_size} tokens")


def hold_contexts(cache: KVCacheManager, requests: Sequence[Request], context_len: int) -> int:
    """Mark the first `context_len` tokens of each prompt as computed; return the highest block that holds one.

    Raises SettingsError when the cache cannot hold all contexts at once.
    """
    held = [_hold(cache, request, context_len) for request in requests]
    highest = max(block for blocks in held for block in chain(*blocks.tables))
    for blocks in held:
        cache.free(blocks)
    return highest


def _hold(cache: KVCacheManager, request: Request, context_len: int) -> SequenceBlocks:
    """Allocate the blocks of one context, chunk by chunk, as a prompt does."""
    blocks, tokens = cache.open(request.cache_salt, request.lora), request.prompt_token_ids
    step = cache.config.max_chunk
    for start in range(0, context_len, step):
        end = min(start + step, context_len)
        if not cache.allocate(blocks, end):
            num_tokens = (cache.config.num_blocks - 1) * cache.config.block_size
            raise SettingsError(f"context_len is {context_len}: the KV cache holds {num_tokens} tokens in all")
        cache.commit(blocks, tokens, end)
        cache.drop(blocks, end)
    if cache.states is not None:  # the context is found where it has a snapshot of its state
        last = context_len // cache.config.block_size - 1
        cache.states.pool.name(blocks.state.spare, blocks.chain.blob(tokens, last))
    return blocks


def fill_blocks(engine: LoadedEngine, num_filled: int, highest: int) -> int:
    """Fill blocks up to `highest` with copies of the first `num_filled`; return how many are filled then."""
    first = NULL_BLOCK + 1
    while num_filled < highest:
        count = min(num_filled, highest - num_filled)
        engine.placement.kv.copy(first, first + num_filled, count)
        num_filled += count
    return num_filled
