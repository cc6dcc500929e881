"""Seconds of the steps of speculative decoding: a target model that checks the tokens of a draft model.

Formulas only: no measurement with speculation is fitted. The scheme is fused speculation of NxD Inference
(models/model_base.py of neuronx-distributed-inference at 4bcdc54b, NeuronFusedSpecModel). One graph on the same cores
runs the draft once for each guessed token and once more to fill its cache, then the target once over the guesses and
the token before them. `speculation_length` counts the tokens that the target reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from .evidence import Band, Phase
from .pipeline import PipelineCost, PipelineModel


class StepTimes(Protocol):
    """Times of a model on its cores, as a plan needs them."""

    def decode(self, batch: int, bucket: int) -> PipelineCost: ...
    def prefill(self, tokens: int, bucket: int) -> PipelineCost: ...
    def band(self, phase: Phase, batch: int, positions: int) -> Band: ...


@dataclass(frozen=True, slots=True)
class Speculation:
    """Guesses of a draft: `num_tokens` a step. A guess after right ones is right with `acceptance_rate`."""

    num_tokens: int
    acceptance_rate: float  # 0 to 1

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a slot in a step: the guesses before the first wrong one, and the target's own next token.

        (1 - a^(k + 1)) / (1 - a), Leviathan et al. 2023 (arXiv 2211.17192, equation 1).
        """
        return sum(self.acceptance_rate**right for right in range(self.num_tokens + 1))


class SpeculativeModel:
    """Times of target and draft together. The target's runtime has `num_tokens` + 1 tokens per slot."""

    def __init__(self, target: PipelineModel, draft: PipelineModel, num_tokens: int) -> None:
        self._target, self._draft, self._num_tokens = target, draft, num_tokens
        self._coefficients = target.stages[0].calibration.coefficients

    def decode(self, batch: int, bucket: int) -> PipelineCost:
        """Return the cost of the guesses, one after the other, and of their check, in one call."""
        guess = self._draft.decode(batch, bucket)
        return _longer(self._target.decode(batch, bucket), (self._num_tokens + 1) * guess.elapsed_s)

    def prefill(self, tokens: int, bucket: int) -> PipelineCost:
        """Return the cost of the prompt through both models in one call; the draft needs its cache too."""
        both = self._draft.prefill(tokens, bucket).elapsed_s - self._coefficients["prefill_call"]
        return _longer(self._target.prefill(tokens, bucket), both)

    def band(self, phase: Phase, batch: int, positions: int) -> Band:
        """Return the band of the target's step, whose provenance is a formula."""
        return self._target.band(phase, batch, positions)


def _longer(cost: PipelineCost, seconds: float) -> PipelineCost:
    return replace(cost, elapsed_s=cost.elapsed_s + seconds, interval_s=cost.interval_s + seconds)
