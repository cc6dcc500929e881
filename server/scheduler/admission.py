"""Refusal of requests that can never be served, or not now. Pure functions that the API calls before it answers 200.

A request that passes can be computed alone in an empty cache, so preemption always leaves a sequence that advances.
"""

from __future__ import annotations

from bisect import bisect_right

from ..config import CacheConfig
from ..errors import InvalidRequest, QueueFull

CODE = "context_length_exceeded"


def cache_tokens(cache: CacheConfig, most: int) -> int:
    """Return the tokens of the longest sequence, up to `most`, that the KV cache can hold; block 0 is padding."""
    usable, size = cache.num_blocks - 1, cache.block_size
    lengths = range(0, most + size, size)
    return min(most, lengths[bisect_right(lengths, usable, key=cache.blocks_of) - 1])


def resolve_max_tokens(
    num_prompt_tokens: int, max_tokens: int | None, *, max_model_len: int, cache: CacheConfig, param: str
) -> int:
    """Return the tokens that the request may generate, at least 1; None asks for the rest of the context.

    A `max_tokens` beyond the context is cut to it. A `max_tokens` that the cache cannot hold is refused, because the
    client would get fewer tokens than both it and the model allow. `param` names the prompt's field.
    Raises InvalidRequest with code "context_length_exceeded".
    """
    if num_prompt_tokens >= max_model_len:
        raise InvalidRequest(
            # Clients recognize this refusal by OpenAI's first words.
            f"This model's maximum context length is {max_model_len} tokens; with at least 1 token to generate, "
            f"a prompt may have {max_model_len - 1}, and this one has {num_prompt_tokens}.",
            param,
            CODE,
        )
    # The last token generated is never computed, so it needs no position in the cache.
    held = cache_tokens(cache, max_model_len)
    most = held + 1 - num_prompt_tokens
    if most < 1:
        raise InvalidRequest(
            f"The prompt has {num_prompt_tokens} tokens; the KV cache of this server holds {held}.",
            param,
            CODE,
        )
    left = max_model_len - num_prompt_tokens
    if max_tokens is None:
        return min(left, most)
    if min(max_tokens, left) > most:
        raise InvalidRequest(
            f"The prompt has {num_prompt_tokens} tokens and up to {min(max_tokens, left)} were asked for; "
            f"the KV cache of this server holds {held}, which leaves room for {most}.",
            param,
            CODE,
        )
    return min(max_tokens, left)


def check_queue(num_open: int, num_new: int, max_num_queued_reqs: int) -> None:
    """Raise QueueFull when `num_new` sequences would take the `num_open` waiting and running ones past the limit."""
    if num_open + num_new > max_num_queued_reqs:
        raise QueueFull(
            f"The server has {num_open} requests open and takes at most {max_num_queued_reqs}; "
            f"this request would add {num_new}. Try again later."
        )
