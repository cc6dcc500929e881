"""Times and counts of one request while it is served, and the durations between them. Pure.

A request's sequences are the `n` choices of each of its prompts. Times are seconds of the host's monotonic clock, which
the API process and the engine share.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...types import Charge, FinishReason, SamplingParams
from ..http.origin import Origin

NO_CHARGE = Charge()


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


@dataclass(slots=True)
class SequenceLife:
    """One sequence: times of its submission, first step and tokens, from the engine's reports."""

    num_prompt_tokens: int
    max_tokens: int
    submit_time: float
    engine: int = 0  # rank of the engine that generates it
    num_cached_tokens: int = 0
    num_tokens: int = 0  # generated
    num_preemptions: int = 0
    charge: Charge = NO_CHARGE  # up to its last token
    scheduled_time: float | None = None  # the first time only
    first_token_time: float | None = None
    last_token_time: float | None = None
    finish_reason: FinishReason | None = None

    @property
    def queue_s(self) -> float | None:
        return _between(self.submit_time, self.scheduled_time)

    @property
    def prefill_s(self) -> float | None:
        return _between(self.scheduled_time, self.first_token_time)

    @property
    def decode_s(self) -> float | None:
        return _between(self.first_token_time, self.last_token_time)

    @property
    def inference_s(self) -> float | None:
        return _between(self.scheduled_time, self.last_token_time)

    @property
    def s_per_output_token(self) -> float | None:
        """Seconds for each token after the first; None without such tokens."""
        return None if self.decode_s is None or self.num_tokens < 2 else self.decode_s / (self.num_tokens - 1)


@dataclass(slots=True)
class RequestLife:
    """One HTTP request: its sequences by engine id, in the order of its choices."""

    origin: Origin
    n: int
    sampling: SamplingParams  # of the first sequence; the others differ in seed and room for tokens
    sequences: dict[str, SequenceLife]
    first_token_time: float | None = None  # when the API process had the first token of any sequence
    end_time: float | None = None

    @property
    def groups(self) -> list[list[SequenceLife]]:
        """Choices of each prompt."""
        lives = list(self.sequences.values())
        return [lives[i : i + self.n] for i in range(0, len(lives), self.n)]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each prompt counted once however many choices it has."""
        return sum(group[0].num_prompt_tokens for group in self.groups)

    @property
    def num_tokens(self) -> int:
        return sum(life.num_tokens for life in self.sequences.values())

    @property
    def ttft_s(self) -> float | None:
        return _between(self.origin.arrival_time, self.first_token_time)

    @property
    def e2e_s(self) -> float | None:
        return _between(self.origin.arrival_time, self.end_time)

    def note_served(self) -> None:
        """Add the tokens to the record of the HTTP request, which may have several of these."""
        served = self.origin.served
        served.prompt_tokens += self.num_prompt_tokens
        served.cached_tokens += sum(group[0].num_cached_tokens for group in self.groups)
        served.output_tokens += self.num_tokens
        served.ttft_s = self.ttft_s if served.ttft_s is None else served.ttft_s

    @property
    def whole(self) -> SequenceLife:
        """The request as one sequence: from the first scheduled one to the last token of any."""
        lives = list(self.sequences.values())
        scheduled = [life.scheduled_time for life in lives if life.scheduled_time is not None]
        first = [life.first_token_time for life in lives if life.first_token_time is not None]
        last = [life.last_token_time for life in lives if life.last_token_time is not None]
        return SequenceLife(
            num_prompt_tokens=self.num_prompt_tokens,
            max_tokens=self.sampling.max_tokens,
            submit_time=min(life.submit_time for life in lives),
            num_tokens=self.num_tokens,
            scheduled_time=min(scheduled, default=None),
            first_token_time=min(first, default=None),
            last_token_time=max(last, default=None),
        )
