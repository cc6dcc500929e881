"""Output of a generation, piece by piece."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from ...types import FinishReason, TokenLogprobs


@dataclass(slots=True)
class Delta:
    """Output of one choice since its last delta. `logprobs` is empty or has one entry for each of `token_ids`.

    `fault`, in the last delta alone, says what is wrong with an output whose schema no grammar could force.
    `prompt_logprobs`, in the first delta alone, has an entry for each token of the prompt after its first.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    fault: str | None = None
    row: bytes | None = None  # see TokenEvent


class Forward(Protocol):
    """Receiver of deltas in the same turn of the event loop that brings them."""

    @property
    def is_open(self) -> bool:
        """Whether `give` may be called now."""

    def give(self, deltas: list[Delta]) -> None:
        """Pass these on; they follow all deltas before."""


async def collect(batches: AsyncGenerator[list[Delta], None]) -> list[Delta]:
    """Run a generation to its end; one complete delta for each choice, by index."""
    whole: dict[int, Delta] = {}
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for delta in batch:
                _append(whole.setdefault(delta.index, Delta(delta.index)), delta)
    return [whole[index] for index in sorted(whole)]


def _append(whole: Delta, delta: Delta) -> None:
    whole.text += delta.text
    whole.token_ids += delta.token_ids
    whole.logprobs += delta.logprobs
    whole.row = whole.row or delta.row
    whole.prompt_logprobs = whole.prompt_logprobs or delta.prompt_logprobs
    whole.finish_reason, whole.stop_reason, whole.fault = delta.finish_reason, delta.stop_reason, delta.fault
