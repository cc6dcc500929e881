"""Beam search over one prompt: which continuations are kept, and which have ended. Pure: whoever drives it computes.

The algorithm and its three ways to stop early are those of transformers (`GenerationMixin._beam_search`), whose scores
are sums of log-probabilities over (length ** length_penalty).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from neuronserve.server.types import TokenLogprobs

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class BeamParams:
    """When a search ends before `max_tokens`: by `early_stopping` as soon as `width` beams have ended; without it when
    no beam that runs would be among those at its present length; by "never" when none could be at any length.
    """

    width: int
    max_tokens: int
    end_ids: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    @property
    def num_candidates(self) -> int:
        """Continuations that are looked at in a step: so many that `width` are left if all others end."""
        return max(2, 1 + len(self.end_ids)) * self.width


class Beam(NamedTuple):
    """Tokens after the prompt."""

    token_ids: tuple[int, ...]
    logprob: float  # of all of them


class EndedBeam(NamedTuple):
    """A beam that has ended; `score` is what it is ranked by."""

    token_ids: tuple[int, ...]
    score: float


class BeamSearch:
    """`running` beams, best first, are to be continued by one token each until `is_done`."""

    def __init__(self, params: BeamParams) -> None:
        self.params = params
        self.running = [Beam((), 0.0)]
        self.ended: list[EndedBeam] = []  # best first, at most `width`
        self.is_done = False

    def advance(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Continue each of `running` by its best tokens, of which `num_candidates` are needed."""
        params = self.params
        candidates = heapq.nlargest(
            params.num_candidates,
            (
                Beam((*beam.token_ids, token), beam.logprob + logprob)
                for beam, entry in zip(self.running, logprobs, strict=True)
                for token, logprob in zip(entry.top_token_ids, entry.top_logprobs, strict=True)
            ),
            key=lambda beam: beam.logprob,
        )
        length = len(candidates[0].token_ids)
        is_last = length >= params.max_tokens
        ended = [is_last or beam.token_ids[-1] in params.end_ids for beam in candidates]
        self.running = [beam for beam, has_ended in zip(candidates, ended, strict=True) if not has_ended]
        self.running = self.running[: params.width]
        # An end that is not among the best `width` is none: another beam has a better way on.
        best = zip(candidates[: params.width], ended, strict=False)
        scored = [EndedBeam(beam.token_ids, self._score(beam, length)) for beam, has_ended in best if has_ended]
        self.ended = heapq.nlargest(params.width, self.ended + scored, key=lambda beam: beam.score)
        self.is_done = not self.running or self._is_settled(length)

    def _is_settled(self, length: int) -> bool:
        """Whether no beam that runs is expected to get among those that have ended."""
        params = self.params
        if len(self.ended) < params.width:
            return False
        if params.early_stopping is True:
            return True
        is_patient = params.early_stopping == "never" and params.length_penalty > 0
        return self._score(self.running[0], params.max_tokens if is_patient else length) <= self.ended[-1].score

    def _score(self, beam: Beam, length: int) -> float:
        return beam.logprob / float(length**self.params.length_penalty)
