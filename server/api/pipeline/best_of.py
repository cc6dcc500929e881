"""The best of several: more choices are generated than the client gets, and those of the likeliest tokens are kept."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from neuronserve.server.api.pipeline.deltas import Delta, Forward
from neuronserve.server.api.pipeline.generation import Generation, PlannedSequence
from neuronserve.server.api.pipeline.prompts import Prompt
from neuronserve.server.api.pipeline.respond import collect
from neuronserve.server.api.wire.usage import Usage


class BestOf:
    """The `n` of `best_of` choices of each prompt with the highest log probability per token, as OpenAI has it.

    They come whole, best first. Usage counts all that were generated.
    """

    def __init__(self, generation: Generation, n: int, best_of: int) -> None:
        """`generation` has `best_of` choices of each prompt, with log probabilities."""
        self._generation, self._n, self._best_of = generation, n, best_of

    @property
    def prompts(self) -> list[Prompt]:
        """One prompt for each choice index."""
        prompts = self._generation.prompts
        return [prompts[i] for i in range(len(prompts)) if i % self._best_of < self._n]

    @property
    def planned(self) -> Sequence[PlannedSequence]:
        """Each prompt once, with the sampling of its first choice."""
        return self._generation.planned

    async def require_welcome(self) -> None:
        await self._generation.require_welcome()

    async def deltas(self, forward: Forward | None = None) -> AsyncGenerator[list[Delta], None]:
        """One batch with all that are kept."""
        del forward
        made = await collect(self._generation)
        groups = [made[i : i + self._best_of] for i in range(0, len(made), self._best_of)]
        kept = [delta for group in groups for delta in sorted(group, key=_mean_logprob, reverse=True)[: self._n]]
        yield [replace(delta, index=index) for index, delta in enumerate(kept)]

    def usage(self, has_output: bool = True) -> Usage:
        """Of all choices that were generated."""
        return self._generation.usage(has_output)

    def times(self, is_asked: bool = False) -> None:
        """Several sequences have none."""


def _mean_logprob(delta: Delta) -> float:
    return sum(entry.sampled for entry in delta.logprobs) / len(delta.logprobs) if delta.logprobs else -math.inf
