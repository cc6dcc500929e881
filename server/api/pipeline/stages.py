"""Records of a generation request on its way: Validated -> Rendered -> Sampled -> Generation.

A dialect makes the first out of its body and writes the answer of the last; the stages between are the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...types import SamplingParams
from ..http.origin import Origin
from ..service import Service
from ..tools.output import OutputPlan
from ..wire.generation import GenerationRequest
from .output_format import Constraint
from .prompts import Prompt


@dataclass(frozen=True, slots=True)
class Validated:
    """A request that this server can serve, before its prompts are rendered."""

    service: Service
    origin: Origin
    body: GenerationRequest
    model_name: str  # in the answer
    plan: OutputPlan
    clips: bool  # cut the output to the context, even if the settings refuse such a request

    @property
    def max_prompt_tokens(self) -> int | None:
        """Most tokens that a prompt may have; None when a longer prompt is truncated."""
        return self.service.model.info.max_prompt_len if self.body.truncate_prompt_tokens is None else None


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompts of a request, and the rules of their outputs."""

    request: Validated
    prompts: Sequence[Prompt]
    max_tokens: int | None  # for each prompt; None = all there is room for
    constraint: Constraint


@dataclass(frozen=True, slots=True)
class PlannedSequence:
    """One choice to generate: a prompt, and how its continuation is sampled."""

    prompt: Prompt
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sequences of a request, `n` in a row for each prompt."""

    request: Validated
    sequences: Sequence[PlannedSequence]
    n: int
    constraint: Constraint
