"""What a generation gives out, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from neuronserve.server.types import FinishReason, TokenLogprobs


@dataclass(slots=True)
class Delta:
    """Output of one choice since its last delta. `logprobs` is empty or has one entry for each of `token_ids`.

    `fault` is what is wrong with a finished output whose schema could not be forced, in the last delta alone.
    `prompt_logprobs` are those of the prompt's tokens after its first, in the first delta alone.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    fault: str | None = None


class Forward(Protocol):
    """Gives deltas on at once, in the turn of the event loop that brings them."""

    @property
    def is_open(self) -> bool:
        """Whether `give` may be called now."""

    def give(self, deltas: list[Delta]) -> None:
        """Give these on; they follow all that came before."""
