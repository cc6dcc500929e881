"""Interface of the backends that generate text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

END_IDS = (2, 0)  # <|im_end|>, <|endoftext|>


@dataclass(frozen=True, slots=True)
class GeneratedIds:
    """Generated tokens without the end mark, and whether the model ended by itself."""

    ids: tuple[int, ...]
    is_ended: bool


class Backend(Protocol):
    """Greedy generation and likelihoods over token ids."""

    def generate(self, prompts: Sequence[list[int]], max_tokens: int) -> list[GeneratedIds]:
        """Generate at most `max_tokens` tokens for each prompt, in order."""
        ...

    def nats(self, ids: list[int]) -> list[float]:
        """Return the negative log-likelihood of each token except the first, given those before it."""
        ...


def until_end(ids: Sequence[int]) -> GeneratedIds:
    """Return the tokens before the first end mark."""
    ends = [i for i, token in enumerate(ids) if token in END_IDS]
    return GeneratedIds(tuple(ids[: ends[0]]), True) if ends else GeneratedIds(tuple(ids), False)
