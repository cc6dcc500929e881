"""A whole answer from its deltas: for clients that do not stream."""

from __future__ import annotations

import contextlib

from server.api.generation import Delta, Generation


async def collect(generation: Generation) -> list[Delta]:
    """Run to the end; one complete delta for each choice, by index."""
    whole: dict[int, Delta] = {}
    async with contextlib.aclosing(generation.deltas()) as batches:
        async for batch in batches:
            for delta in batch:
                _append(whole.setdefault(delta.index, Delta(delta.index)), delta)
    return [whole[index] for index in sorted(whole)]


def _append(whole: Delta, delta: Delta) -> None:
    whole.text += delta.text
    whole.token_ids += delta.token_ids
    whole.logprobs += delta.logprobs
    whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
