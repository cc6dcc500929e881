"""The rule that ends a sequence, checked after each token."""

from __future__ import annotations

from typing import NamedTuple

from ..types import FinishReason, SamplingParams


class Finish(NamedTuple):
    """Reason of an end; `stop_reason` is the stop token if it is one of the request's own."""

    reason: FinishReason
    stop_reason: int | None = None


STOP = Finish("stop")
LENGTH = Finish("length")


def check_finish(
    sampling: SamplingParams, token_id: int, num_generated: int, *, is_context_full: bool
) -> Finish | None:
    """Return the finish if `token_id`, counted in `num_generated`, ends the sequence, else None.

    Stop tokens count from the `min_tokens`-th token on; the model's own come before the request's; a token that
    both stops and fills the length has stopped.
    """
    if num_generated >= sampling.min_tokens:
        if token_id in sampling.eos_token_ids and not sampling.ignore_eos:
            return STOP
        if token_id in sampling.stop_token_ids:
            return Finish("stop", token_id)
    if num_generated >= sampling.max_tokens or is_context_full:
        return LENGTH
    return None
