"""One open request as the scheduler sees it. Mutable, and never leaves the scheduler.

There is no prefill or decode state: `num_computed_tokens` chases `len(token_ids)`. Prefill chunks, decode, prefix hits
and recompute after a preemption differ only in how far behind it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from neuronserve.server.kv_cache.manager import SequenceBlocks
from neuronserve.server.types import Request, TokenLogprobs


class Sequence:
    """`token_ids` only grows; `blocks` covers at least the computed positions while the sequence runs."""

    __slots__ = (
        "blocks",
        "is_running",
        "most_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_resumed",
        "order",
        "prompt_logprobs",
        "request",
        "token_ids",
        "was_admitted",
    )

    def __init__(self, request: Request, blocks: SequenceBlocks) -> None:
        self.request = request
        self.blocks = blocks
        self.token_ids: list[int] = [*request.prompt_token_ids, *request.generated_token_ids]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_resumed = len(request.generated_token_ids)  # tokens of an engine before this one
        self.most_tokens = self.num_prompt_tokens + request.sampling.max_tokens  # that it may have, by its request
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0  # found in the prefix cache at the first admission, resumed ones too
        self.prompt_logprobs: list[TokenLogprobs] = []  # of the prompt's tokens computed so far, until they are sent
        self.was_admitted = False
        self.is_running = False
        # The one order of service, among the running and the waiting alike; ids make it total.
        self.order = (request.priority, request.arrival_time, request.request_id)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_catching_up(self) -> bool:
        """True until it has a token more than an engine before this one had generated."""
        return self.num_resumed > 0 and len(self.token_ids) == self.num_prompt_tokens + self.num_resumed

    @property
    def needs_prompt_logits(self) -> bool:
        """True while every token of the prompt must be computed: what the prefix cache has leaves no logits."""
        return self.request.sampling.prompt_logprobs is not None and self.num_generated == 0

    def take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Those that wait to be sent; they do no more."""
        if not self.prompt_logprobs:
            return ()
        taken, self.prompt_logprobs = tuple(self.prompt_logprobs), []
        return taken

    def rewind(self) -> None:
        """Nothing of it is computed any more, and it does not run."""
        self.num_computed_tokens, self.prompt_logprobs, self.is_running = 0, [], False

    @property
    def num_pending(self) -> int:
        """Known tokens still to be computed; at least 1 while the request is open."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decode(self) -> bool:
        """Past the prompt with one token to compute."""
        num_computed = self.num_computed_tokens
        return num_computed >= self.num_prompt_tokens and len(self.token_ids) - num_computed == 1


def is_underway(seq: Sequence, block: int, running: Iterable[Sequence], block_size: int) -> bool:
    """Whether one that runs is about to compute block `block` of `seq`: waiting for it saves computing it again.

    So a burst with one system prompt, or the `n` choices of one request, compute their common prefix once.
    """
    end = (block + 1) * block_size
    digest = seq.blocks.chain.digests[block : block + 1]  # empty past what can be shared, or with caching off
    return bool(digest) and any(
        other.num_computed_tokens < end and other.blocks.chain.digests[block : block + 1] == digest for other in running
    )
